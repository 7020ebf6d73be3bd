// What a page asks its own port to do. The port refuses what a role does not allow, in words for people.

const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;

// The actions that whoever looks may ask for.
export const mayDo = (action) => meta("may").split(", ").includes(action);

export async function act(path, content) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "X-Form-Token": meta("form-token") },
    body: content === undefined ? undefined : JSON.stringify(content),
  });
  const text = await answer.text();
  if (answer.ok) return;
  let told = text;
  try {
    told = JSON.parse(text).error ?? text;
  } catch { /* a text as it is */ }
  throw new Error(told);
}
