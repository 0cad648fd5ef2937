// Asking the gateway. The admin key lives in this tab's sessionStorage and goes nowhere but to this origin.

const KEY = "draftlane-admin-key";

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const key = () => sessionStorage.getItem(KEY);
export const remember = (value) => sessionStorage.setItem(KEY, value);
export const forget = () => sessionStorage.removeItem(KEY);

// Addresses are relative to /draftlane/console, so that a prefix that a proxy puts before them stays.
export async function ask(path, { method = "GET", body, using = key() } = {}) {
  const answer = await fetch(path, {
    method,
    headers: { authorization: `Bearer ${using}`, ...(body ? { "content-type": "application/json" } : {}) },
    body: body && JSON.stringify(body),
    cache: "no-store",
  });
  const found = await answer.json().catch(() => null);
  if (!answer.ok) {
    const error = found?.error;
    throw new Refused(answer.status, error?.code ?? "", error?.message ?? found?.problems?.join("; ") ?? answer.statusText);
  }
  return found;
}
