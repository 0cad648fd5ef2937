// A chat completion, its raw response, and the models.
import { client, count, tell } from "./client.mjs";

const { data, response } = await client.chat.completions
  .create({ model: "gpt-4o-mini", messages: count, temperature: 0 }, { headers: { "x-request-id": "node-1" } })
  .withResponse();
const models = [];
for await (const model of client.models.list()) models.push(model.id);

tell({
  text: data.choices[0].message.content,
  finish: data.choices[0].finish_reason,
  tokens: data.usage.completion_tokens,
  pool: response.headers.get("x-draftlane-pool"),
  reason: response.headers.get("x-draftlane-reason"),
  id: response.headers.get("x-request-id"),
  models,
});
