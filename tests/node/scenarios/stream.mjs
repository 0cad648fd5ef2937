// Streams: without usage, with it, left in the middle, and the responses' events.
import { client, count, tell } from "./client.mjs";

const ask = { model: "demo", messages: count, temperature: 0, stream: true };

async function read(options) {
  const chunks = [];
  for await (const chunk of await client.chat.completions.create({ ...ask, ...options })) chunks.push(chunk);
  return {
    text: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
    usages: chunks.filter((chunk) => chunk.usage).length,
    empty: chunks.filter((chunk) => !chunk.choices.length).length,
  };
}

const plain = await read({});
const counted = await read({ stream_options: { include_usage: true } });

let seen = 0;
for await (const _ of await client.chat.completions.create({ ...ask, max_tokens: 4000, ignore_eos: true })) {
  seen += 1;
  if (seen === 5) break;
}

const events = [];
for await (const event of await client.responses.create({ model: "demo", input: "Count from 1 to 9.", temperature: 0, stream: true }))
  events.push(event);

tell({
  plain,
  counted,
  seen,
  types: [events[0].type, events.at(-1).type],
  response: events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""),
});
