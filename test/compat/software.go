package main

import "github.com/dozehq/doze"

// software is something that users run in sandboxes: a row of the table. All commands are
// for the shell, as root, in /root.
type software struct {
	name     string
	packages []string // of Debian
	prepare  string   // once, before all else
	version  string   // prints it
	during   string   // goes on in the background, also while the sandbox sleeps
	before   string   // succeeds if it works
	after    string   // the same, after a sleep on disk
	remark   string
	extra    map[string]string // what the sandbox has switched on
}

// vite is a project with a page and a program that hears of each change, as a browser does.
const vite = `mkdir -p site && cd site && npm init -y >/dev/null && npm install vite@5.4.21 ws@8.18.3 &&
echo '<script type="module" src="/main.js"></script>' > index.html && echo 'export const word = "first"; import.meta.hot.accept()' > main.js &&
cat > hear.cjs <<'END'
const WebSocket = require('ws')
const socket = new WebSocket('ws://127.0.0.1:5173/', 'vite-hmr')
socket.on('message', (raw) => require('fs').appendFileSync('/root/heard', raw + '\n'))
END
`

// kernel starts a kernel of Jupyter and runs code in it. The kernel lives on.
const kernel = `import sys, jupyter_client
m = jupyter_client.BlockingKernelClient(connection_file='/root/kernel.json')
m.load_connection_file()
m.start_channels()
m.wait_for_ready(timeout=60)
said = []
m.execute_interactive(sys.argv[1], timeout=60, output_hook=lambda o: said.append(o['content'].get('text', '')))
print(''.join(said).strip())
`

// all is the table: what is run, in the order of the page.
var all = []software{
	{
		name: "apt", packages: []string{"hello"}, version: "apt --version | cut -d' ' -f2",
		before: "hello | grep -q world", after: "apt-get remove -y -qq hello >/dev/null && ! command -v hello",
	},
	{
		name: "Python, venv and pip", packages: []string{"python3-venv", "python3-setuptools", "python3-wheel"}, version: "python3 -V | cut -d' ' -f2",
		prepare: "python3 -m venv --system-site-packages env && mkdir -p own/own && echo 'word = 42' > own/own/__init__.py && " +
			"printf '[project]\\nname = \"own\"\\nversion = \"1\"\\n' > own/pyproject.toml && env/bin/pip install --no-build-isolation --no-index ./own",
		during: "env/bin/python -c 'import own, time; f = open(\"/root/said\", \"w\")\nwhile True: print(own.word, file=f, flush=True); own.word += 1; time.sleep(0.1)'",
		before: "grep -q 43 said", after: "cp said then && sleep 1 && test $(tail -1 said) -gt $(tail -1 then) && env/bin/pip list 2>/dev/null | grep -q own",
	},
	{
		name: "npm", version: "npm --version",
		prepare: "mkdir app && cd app && npm init -y >/dev/null && npm install express@4.21.2",
		during:  "cd app && exec node -e 'let n = 0; require(\"express\")().get(\"/\", (q, r) => r.send(`request ${++n}`)).listen(3000)'",
		before:  "curl -sf 127.0.0.1:3000 | grep -q request", after: "test $(curl -sf 127.0.0.1:3000 | cut -d' ' -f2) -ge 2 && cd app && npm install lodash@4.17.21",
	},
	{
		name: "Vite, with hot reload", version: "cd site && npx vite --version | cut -d/ -f2 | cut -d' ' -f1",
		prepare: vite,
		during:  "cd site && (npx vite --host 127.0.0.1 --port 5173 & while ! curl -sf 127.0.0.1:5173/main.js; do sleep 0.2; done; exec node hear.cjs)",
		before:  "curl -sf 127.0.0.1:5173/main.js | grep -q first && grep -q connected heard",
		after:   "sed -i s/first/second/ site/main.js && sleep 1 && curl -sf 127.0.0.1:5173/main.js | grep -q second && grep -q '\"update\"' heard",
		remark:  "The connection of a browser to the server, from inside, survives the sleep.",
	},
	{
		name: "git", packages: []string{"git"}, version: "git --version | cut -d' ' -f3",
		prepare: "git config --global user.name me && git config --global user.email me@example.com && git init -q repo && cd repo && for i in $(seq 200); do echo $i > $i; done && git add . && git commit -qm first",
		before:  "git clone -q repo copy && test $(ls copy | wc -l) = 200", after: "cd repo && git fsck && git checkout -qb next && git rm -q 1 && git commit -qm second && git gc -q",
	},
	{
		name: "gcc and make", packages: []string{"gcc", "make", "libc6-dev"}, version: "gcc -dumpfullversion",
		prepare: `printf '#include <stdio.h>\nint main(void) { puts("compiled"); }\n' > main.c && printf 'main: main.c\n\tgcc -O2 -o main main.c\n' > Makefile`,
		before:  "make && ./main | grep -q compiled", after: "touch main.c && make && ./main | grep -q compiled",
	},
	{
		name: "Go", packages: []string{"golang-go"}, version: "go version | cut -d' ' -f3 | sed s/go//",
		prepare: `mkdir hello && cd hello && go mod init hello && printf 'package main\nimport ("net/http"; "fmt"; "sync/atomic")\nvar n atomic.Int64\nfunc main() { http.ListenAndServe("127.0.0.1:4000", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, n.Add(1)) })) }\n' > main.go && go build -o hello .`,
		during:  "exec hello/hello", before: "curl -sf 127.0.0.1:4000", after: "test $(curl -sf 127.0.0.1:4000) -ge 2 && cd hello && go vet ./...",
	},
	{
		name: "PostgreSQL", packages: []string{"postgresql"}, version: "psql --version | cut -d' ' -f3",
		prepare: "pg_ctlcluster $(ls /etc/postgresql) main start && su postgres -c \"psql -qc 'create table t (n int)'\" && mkfifo sql",
		during:  "exec 3<>sql; echo 'begin; insert into t values (42);' >&3; exec su postgres -c 'psql -q' <&3",
		before:  "su postgres -c \"psql -qtc \\\"select state from pg_stat_activity where query like 'insert%'\\\"\" | grep -q 'idle in transaction'",
		after:   "echo 'commit;' > sql; sleep 0.5; su postgres -c \"psql -qtc 'select n from t'\" | grep -q 42",
		remark:  "A transaction is open across the sleep, and commits after it.",
	},
	{
		name: "Redis", packages: []string{"redis-server"}, version: "redis-server --version | cut -d= -f2 | cut -d' ' -f1",
		during: "exec redis-server --appendonly yes --port 6379",
		before: "redis-cli set word kept | grep -q OK && redis-cli set brief gone ex 1 | grep -q OK", after: "redis-cli get word | grep -q kept && test -z \"$(redis-cli get brief)\"",
		remark: "What expired during the sleep is gone.",
	},
	{
		name: "SQLite", packages: []string{"sqlite3"}, version: "sqlite3 --version | cut -d' ' -f1",
		prepare: "sqlite3 db 'pragma journal_mode = wal; create table t (n int)' && mkfifo sql",
		during:  "exec 3<>sql; echo 'begin; insert into t values (42);' >&3; exec sqlite3 db <&3",
		before:  "sqlite3 db 'insert into t values (0)' 2>&1 | grep -q locked",
		after:   "echo 'commit;' > sql; sleep 0.5; sqlite3 db 'select n from t; pragma integrity_check' > got; grep -q 42 got && grep -q ok got",
		remark:  "A transaction in WAL mode is open across the sleep.",
	},
	{
		name: "Chromium", packages: []string{"chromium"}, version: "chromium --version 2>/dev/null | cut -d' ' -f2",
		prepare: `echo '<title>a page</title><script>setInterval(() => document.title = "page " + Date.now(), 100)</script>' > page.html`,
		during:  "exec chromium --headless=new --no-sandbox --disable-gpu --remote-debugging-port=9222 file:///root/page.html",
		before:  `curl -sf 127.0.0.1:9222/json | grep -q '"title": "page '`,
		after:   `curl -sf 127.0.0.1:9222/json | grep '"title"' > then; sleep 2; curl -sf 127.0.0.1:9222/json | grep '"title": "page ' > now && ! cmp -s then now`,
		remark:  "It needs `--no-sandbox`, as in most containers.",
	},
	{
		name: "tmux", packages: []string{"tmux"}, version: "tmux -V | cut -d' ' -f2",
		prepare: "TERM=xterm tmux new-session -d -s work 'i=0; while :; do i=$((i+1)); echo line $i; sleep 0.1; done'",
		before:  "tmux capture-pane -pt work | grep -q line", after: "tmux capture-pane -pt work | tail -5 > then; sleep 1; tmux capture-pane -pt work | tail -5 > now; ! cmp -s then now",
	},
	{
		name: "Jupyter", packages: []string{"python3-ipykernel", "python3-jupyter-client"}, version: "python3 -c 'import ipykernel; print(ipykernel.__version__)'",
		prepare: "cat > run.py <<'END'\n" + kernel + "END\n",
		during:  "exec python3 -m ipykernel_launcher -f /root/kernel.json",
		before:  `test -f kernel.json && python3 run.py 'word = 42; print(word)' | grep -q 42`, after: `python3 run.py 'print(word + 1)' | grep -q 43`,
		remark: "The variables of the kernel are there after the sleep.",
	},
	{
		name: "strace", packages: []string{"strace"}, version: "strace -V | head -1 | cut -d' ' -f4",
		during: "exec strace -f -o /root/traced sh -c 'while :; do echo x > /dev/null; sleep 0.2; done'",
		before: "strace true 2>&1 | grep -q 'exited with 0' && grep -q write traced", after: "wc -l < traced > then; sleep 2; test $(wc -l < traced) -gt $(cat then)",
		remark: "A program that is traced sleeps and goes on.",
	},
	{
		name: "ssh", packages: []string{"openssh-server", "openssh-client"}, version: "ssh -V 2>&1 | cut -d_ -f2 | cut -d' ' -f1",
		prepare: "mkdir -p /run/sshd .ssh && ssh-keygen -qt ed25519 -N '' -f .ssh/id_ed25519 && cp .ssh/id_ed25519.pub .ssh/authorized_keys && chmod -R go= .ssh && /usr/sbin/sshd -p 2222 && ssh-keyscan -p 2222 127.0.0.1 > .ssh/known_hosts 2>/dev/null",
		during:  "exec ssh -p 2222 127.0.0.1 'i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done' > /root/far",
		before:  "test -s far", after: "cp far then; sleep 2; test $(tail -1 far) -gt $(tail -1 then)",
		remark: "A session within the sandbox survives the sleep. One from outside ends with its connection.",
	},
	{
		name: "Docker", packages: []string{"docker.io", "busybox-static"}, version: "docker --version | cut -d' ' -f3 | tr -d ,",
		extra:   map[string]string{doze.ExtraContainers: "enabled"},
		prepare: "mkdir -p box/bin && cp /bin/busybox box/bin/ && for n in sh sleep cat echo; do ln -s busybox box/bin/$n; done",
		during:  "exec dockerd --iptables=false --ip6tables=false --bridge=none",
		before:  "docker info >/dev/null && tar -C box -c . | docker import - box && docker run -d --network host --name count box /bin/sh -c 'i=0; while :; do i=$((i+1)); echo $i > /n; sleep 0.1; done'",
		after:   "docker exec count /bin/cat /n > then; sleep 2; test $(docker exec count /bin/cat /n) -gt $(cat then)",
		remark:  "With `extraArgs.containers`. Only the network of the sandbox itself.",
	},
	{
		name: "Podman", packages: []string{"podman", "runc", "busybox-static"}, version: "podman --version | cut -d' ' -f3",
		extra: map[string]string{doze.ExtraContainers: "enabled"},
		prepare: `mkdir -p box/bin && cp /bin/busybox box/bin/ && for n in sh sleep cat echo; do ln -s busybox box/bin/$n; done && ` +
			`printf '[engine]\nruntime = "runc"\n' > /etc/containers/containers.conf && ` +
			`printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' > /etc/containers/storage.conf`,
		before: "tar -C box -c . | podman import - box && podman run -d --network host --name count box /bin/sh -c 'i=0; while :; do i=$((i+1)); echo $i > /n; sleep 0.1; done'",
		after:  "podman exec count /bin/cat /n > then; sleep 2; test $(podman exec count /bin/cat /n) -gt $(cat then)",
		remark: "With `extraArgs.containers`, the runtime runc and the storage driver vfs. Only the network of the sandbox itself.",
	},
}
