// The page of a Doze platform.
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { effect, untracked } from "@preact/signals";
import { caller, end, open, session } from "./api";
import { restart } from "./live";
import { Login } from "./login";
import { Shell } from "./shell";
import { reason } from "./ui";

function App() {
  if (!session.value) return <Login />;
  if (!caller.value) return <p class="opening" role="status">Opening…</p>;
  return <Shell />;
}

// A tab that is loaded again has a session, and does not know yet whose it is.
const s = session.value;
if (s) open(s).catch((e: unknown) => end(reason(e)));

// Whoever comes in, and into which workspace: the list begins anew.
let was = "";
effect(() => {
  const is = caller.value ? `${caller.value.sub} ${caller.value.workspace}` : "";
  if (is !== was) {
    was = is;
    untracked(restart);
  }
});

const root = document.getElementById("app");
if (root) render(<App />, root);
