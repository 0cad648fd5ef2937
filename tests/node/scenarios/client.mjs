// The client that every scenario uses: OpenAI's own, with nothing changed but its address.
import OpenAI from "openai";

const [url, key] = process.argv.slice(2);

export const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
export const count = [{ role: "user", content: "Count from 1 to 60." }];

// What a scenario found out goes to the test as one JSON document.
export function tell(found) {
  process.stdout.write(JSON.stringify(found));
}

// The error that an action ends with, as far as a caller would look at it.
export async function failure(action) {
  try {
    await action();
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? null, code: error.code ?? null, param: error.param ?? null };
  }
  return { name: "none" };
}
