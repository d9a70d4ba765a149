// The page of a Doze platform.
import "uplot/dist/uPlot.min.css";
import "@xterm/xterm/css/xterm.css";
import "./style.css";
import "./inside.css";
import { render } from "preact";
import { effect, untracked } from "@preact/signals";
import { caller, end, open, Refusal, session } from "./api";
import { forget as forgetFindings } from "./findings";
import { restart } from "./live";
import { Login } from "./login";
import { look } from "./nodes";
import { forget } from "./past";
import { Shell } from "./shell";
import { notices, reason } from "./ui";

function App() {
  if (!session.value) return <Login />;
  if (!caller.value) return <main class="opening"><p role="status">Asking the platform who you are…</p></main>;
  return <Shell />;
}

// A tab that is loaded again has a session, and does not know yet whose it is.
async function resume(): Promise<void> {
  for (let wait = 1000; session.value && !caller.value; wait = Math.min(30_000, wait * 2)) {
    try {
      await open(session.value);
    } catch (e) {
      // A platform that does not answer says nothing about the session.
      if (e instanceof Refusal && e.status > 0 && e.status < 500 && e.status !== 429) return end(reason(e));
      await new Promise((done) => setTimeout(done, wait));
    }
  }
}
void resume();

// Whoever comes in, and into which workspace: the list begins anew.
let was = "";
effect(() => {
  const is = caller.value ? `${caller.value.sub} ${caller.value.workspace}` : "";
  if (is !== was) {
    was = is;
    untracked(() => {
      forget();
      forgetFindings();
      notices.value = [];
      restart();
      void look();
    });
  }
});

const root = document.getElementById("app");
if (root) render(<App />, root);
