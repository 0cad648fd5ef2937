// Engines that fail: before the answer, and in the middle of a stream.
import { client, count, failure, tell } from "./client.mjs";

const words = [];
const cut = await failure(async () => {
  const stream = await client.chat.completions.create({ model: "cut", messages: count, temperature: 0, stream: true });
  for await (const chunk of stream) words.push(chunk.choices[0].delta.content ?? "");
});

tell({
  cut: { ...cut, text: words.join("") },
  down: await failure(() => client.chat.completions.create({ model: "down", messages: count })),
  busy: await failure(() => client.chat.completions.create({ model: "busy", messages: count })),
});
