// Validate custom resources by their published schemas: `node crds.mjs < documents.json` prints a JSON list of findings.
//
// The packages' validators pass over fields that they do not know, which an API server refuses or drops. But they read every
// field that they do know: so a document is handed to them behind a proxy, and what nobody has read is unknown.

import { readFileSync } from "node:fs";

const PACKAGES = {
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
};

/** Wrap a value so that reading any part of it is noted in `read` by its path. */
function watched(value, read, path = "") {
  if (value === null || typeof value !== "object") return value;
  return new Proxy(value, {
    get(target, key, receiver) {
      const found = Reflect.get(target, key, receiver);
      if (typeof key === "symbol" || !Object.hasOwn(target, key)) return found;
      read.add(`${path}/${key}`);
      return watched(found, read, `${path}/${key}`);
    },
  });
}

/** Yield the path of every field of a value. */
function* fields(value, path = "") {
  if (value === null || typeof value !== "object") return;
  for (const [key, inner] of Object.entries(value)) {
    yield `${path}/${key}`;
    yield* fields(inner, `${path}/${key}`);
  }
}

/** Return what is wrong with one document, in words. */
async function problems(document) {
  const [group, version] = document.apiVersion.split("/");
  const source = PACKAGES[group];
  if (source === undefined) return [`no schema of ${document.apiVersion} is known`];
  let Resource;
  try {
    ({ [document.kind]: Resource } = await import(`${source}/${group}/${version}/${document.kind}`));
  } catch {
    return [`${document.apiVersion} has no ${document.kind}`];
  }
  const read = new Set(["/apiVersion", "/kind"]);
  const found = [];
  try {
    Resource.prototype.validate.call(watched(new Resource(document), read));
  } catch (error) {
    found.push(error.message);
  }
  const unknown = [...fields(document)].filter((path) => !read.has(path));
  const topmost = unknown.filter((path) => !unknown.some((other) => path.startsWith(`${other}/`)));
  return [...found, ...topmost.map((path) => `${path}: there is no such field`)];
}

const findings = [];
for (const document of JSON.parse(readFileSync(0, "utf8"))) {
  for (const what of await problems(document)) {
    findings.push({ where: `${document.kind} ${document.metadata.name}`, what });
  }
}
console.log(JSON.stringify(findings));
