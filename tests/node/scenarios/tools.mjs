// Tools: whole, in pieces, and as the client's own helper assembles them.
import { client, tell } from "./client.mjs";

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const ask = {
  model: "demo",
  temperature: 0,
  messages: [{ role: "user", content: "What is the weather in Paris?" }],
  tools: [{ type: "function", function: { name: "get_weather", description: "The weather of a city.", parameters } }],
};

const found = {};
for (const choice of ["auto", "required", { type: "function", function: { name: "get_weather" } }]) {
  const whole = await client.chat.completions.create({ ...ask, tool_choice: choice });
  const final = await client.chat.completions.stream({ ...ask, tool_choice: choice }).finalChatCompletion();
  const calls = [whole, final].map((answer) => answer.choices[0].message.tool_calls[0].function);
  found[choice.type ?? choice] = calls.map((call) => [call.name, JSON.parse(call.arguments)]);
}
tell(found);
