// Refusals of the gateway and of the engine, as the client's own exceptions.
import { client, count, failure, tell } from "./client.mjs";

const chat = client.chat.completions;

tell({
  field: await failure(() => chat.create({ model: "demo", messages: count, n: "two" })),
  model: await failure(() => chat.create({ model: "gpt-99", messages: count })),
  key: await failure(() => client.withOptions({ apiKey: "sk-wrong" }).chat.completions.create({ model: "demo", messages: count })),
  engine: await failure(() => chat.create({ model: "demo", messages: count, max_tokens: 10_000_000 })),
  path: await failure(() => client.models.retrieve("gpt-99")),
});
