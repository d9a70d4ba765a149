package e2e_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/authority"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

// portsDomain is the domain of a platform with a certificate in files.
const portsDomain = "doze.test"

// databasePackages have PostgreSQL and Redis, with those of their libraries that the base
// image does not have and that they load here.
var databasePackages = []string{
	"postgresql-15", "postgresql-client-15", "libpq5", "libicu72", "libxml2", "libxslt1.1",
	"redis-server", "redis-tools", "libjemalloc2", "liblzf1",
}

// databases starts PostgreSQL and Redis, with a certificate of the sandbox.
const databases = `cd /root && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=in-the-sandbox -keyout own.key -out own.pem 2>/dev/null
useradd --create-home postgres && install -o postgres -m 600 own.key own.pem /home/postgres/ && chmod 644 own.key
cat >/home/postgres/start <<'END'
set -e
PATH=$PATH:/usr/lib/postgresql/15/bin
cd /home/postgres
initdb -D data -N --no-locale -E UTF8 --auth-local=peer --auth-host=scram-sha-256 >/dev/null
pg_ctl -D data -w -l log -o "-k /tmp -c ssl=on -c ssl_cert_file=/home/postgres/own.pem -c ssl_key_file=/home/postgres/own.key" start >/dev/null
psql -h /tmp -qc "create role app login password 'word'" -c 'create database app owner app' postgres
END
su postgres -c "sh /home/postgres/start"
redis-server --daemonize yes --requirepass word --port 6379 --tls-port 6380 --tls-cert-file own.pem --tls-key-file own.key --tls-auth-clients no >/dev/null`

// TestPortsByTLS: ordinary clients reach databases in a sandbox by the name of a preview,
// also while it sleeps on disk, and nobody reaches one whose preview is private.
func TestPortsByTLS(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"psql", "redis-cli", "openssl", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %v: run make deps-test", err)
		}
	}
	cert, key, roots := authority.SelfSigned(t, portsDomain, "*.local."+portsDomain, "*.local.preview."+portsDomain)
	listen, err := freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listen)
	p, c := launch(t, nil, testkit.Options{Listen: listen, Host: portsDomain, Roots: roots, Args: []string{
		"--tls-cert", cert, "--tls-key", key, "--domain", portsDomain, "--public-url", "https://" + net.JoinHostPort(portsDomain, port),
		"--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s",
	}})
	sb := named("db", 2048)
	sb.Spec.Runtime.Ports = []doze.Port{{Target: 5432, Protocol: "TCP"}, {Target: 6379, Protocol: "TCP"}, {Target: 6380, Protocol: "TLS"}, {Target: 3000}, {Target: 5999, Protocol: "TCP"}}
	sb, agent := create(t, c, sb)
	install(t, agent, unpacked, download(t, databasePackages...))
	if out := sh(t, agent, "set -e; "+databases); out != "" {
		t.Log(out)
	}
	// share makes a preview, and returns its host.
	share := func(name string, to int, public bool) string {
		t.Helper()
		made, err := c.CreatePreview(t.Context(), "db", doze.Preview{Metadata: doze.PreviewMetadata{Name: name}, Spec: doze.PreviewSpec{Port: to, Public: public, PrefixURL: name}})
		if err != nil {
			t.Fatal(err)
		}
		host := name + "-main.local.preview." + portsDomain
		if want := "tls://" + net.JoinHostPort(host, port); to != 3000 && made.Spec.URL != want {
			t.Errorf("the address of %s is %s, not %s", name, made.Spec.URL, want)
		}
		return host
	}
	pg, redis, own, private := share("pg", 5432, true), share("redis", 6379, true), share("own", 6380, true), share("private", 5432, false)
	page, nobody := share("page", 3000, true), share("nobody", 5999, true)

	// says runs a client on this host. A client knows the address of no name.
	says := func(args ...string) (string, bool) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PG") }), "PGPASSWORD=word", "PGCONNECT_TIMEOUT=30")
		cmd.WaitDelay = patience
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err == nil
	}
	psql := func(host, sql string) (string, bool) {
		t.Helper()
		return says("psql", "-X", "-q", "-t", "-A", "-c", sql, "host="+host+" hostaddr=127.0.0.1 port="+port+" dbname=app user=app sslmode=verify-full sslrootcert="+cert)
	}
	redisSays := func(host, authority string, words ...string) (string, bool) {
		t.Helper()
		return says(append([]string{"redis-cli", "--no-auth-warning", "-a", "word", "--tls", "--sni", host, "-h", "127.0.0.1", "-p", port, "--cacert", authority}, words...)...)
	}
	ownCert := filepath.Join(t.TempDir(), "own.pem")
	if err := os.WriteFile(ownCert, []byte(sh(t, agent, "cat /root/own.pem")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, ok := psql(pg, "create table t (n int)"); !ok {
		t.Fatal(out)
	}
	for i := range 2 {
		if out, ok := psql(pg, "insert into t values (1); select count(*) from t"); !ok || out != map[int]string{0: "1", 1: "2"}[i] {
			t.Errorf("psql: %s", out)
		}
		if out, ok := redisSays(redis, cert, "incr", "calls"); !ok || out != map[int]string{0: "1", 1: "2"}[i] {
			t.Errorf("redis-cli: %s", out)
		}
		// The sandbox has the certificate, so that of the platform does not help.
		if out, ok := redisSays(own, ownCert, "get", "calls"); !ok || out != map[int]string{0: "1", 1: "2"}[i] {
			t.Errorf("redis-cli through the platform: %s", out)
		}
		if i == 0 {
			await(t, p, "disk")
		}
	}
	if out, ok := redisSays(own, cert, "ping"); ok || !strings.Contains(out, "certificate verify failed") {
		t.Errorf("TLS ended at the platform: %s", out)
	}

	t.Run("drivers", func(t *testing.T) {
		for negotiation, want := range map[string]string{"postgres": "", "direct": "postgresql"} {
			config, err := pgx.ParseConfig("host=" + pg + " port=" + port + " dbname=app user=app password=word sslmode=verify-full sslrootcert=" + cert + " sslnegotiation=" + negotiation)
			if err != nil {
				t.Fatal(err)
			}
			config.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
			var chosen string
			config.TLSConfig.VerifyConnection = func(s tls.ConnectionState) error { chosen = s.NegotiatedProtocol; return nil }
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := conn.QueryRow(t.Context(), "select count(*) from t").Scan(&n); err != nil || n != 2 || chosen != want {
				t.Errorf("%s: %d rows, %v, by %q", negotiation, n, err, chosen)
			}
			if err := conn.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("refused", func(t *testing.T) {
		if out, ok := psql(private, "select 1"); ok || !strings.Contains(out, "alert access denied") {
			t.Errorf("a private preview: %s", out)
		}
		if out, ok := psql(nobody, "select 1"); ok || !strings.Contains(out, "alert internal error") {
			t.Errorf("nothing listens: %s", out)
		}
		if out, ok := psql(page, "select 1"); ok || !strings.Contains(out, "unrecognized name") {
			t.Errorf("a page: %s", out)
		}
		if out, ok := says("psql", "-X", "-c", "select 1", "host="+pg+" hostaddr=127.0.0.1 port="+port+" dbname=app user=app sslmode=disable"); ok || !strings.Contains(out, "sslmode=require") {
			t.Errorf("in clear: %s", out)
		}
		resolve := []string{"-sS", "--cacert", cert, "--resolve", pg + ":" + port + ":127.0.0.1", "--resolve", page + ":" + port + ":127.0.0.1"}
		if out, ok := says(append([]string{"curl", "https://" + net.JoinHostPort(pg, port) + "/"}, resolve...)...); ok || !strings.Contains(out, "alert no application protocol") {
			t.Errorf("a browser: %s", out)
		}
		// A page that asks for another host in its connection gets no byte to the database.
		if out, ok := says(append([]string{"curl", "-H", "Host: " + pg, "https://" + net.JoinHostPort(page, port) + "/"}, resolve...)...); !ok || !strings.Contains(out, "declared without HTTP") {
			t.Errorf("another host: %s", out)
		}
		if out, _ := says("openssl", "s_client", "-connect", "127.0.0.1:"+port, "-servername", "none-main.local.preview."+portsDomain, "-alpn", "postgresql"); !strings.Contains(out, "alert no application protocol") {
			t.Errorf("no preview: %s", out)
		}
		log, err := os.ReadFile(p.Log)
		if err != nil || !strings.Contains(string(log), "TLS /") {
			t.Errorf("the log has no line about it: %v", err)
		}
		until(t, "the audit log has the refusal", func() bool {
			for l, err := range c.Audit(t.Context(), client.AuditFilter{Outcome: doze.AuditDenied}) {
				if err == nil && l.Method == "TLS" && l.Object.Name == "db" && l.Status == http.StatusForbidden {
					return true
				}
			}
			return false
		})
	})

	t.Run("end", func(t *testing.T) {
		conn, err := tls.Dial("tcp", listen, &tls.Config{RootCAs: roots, ServerName: redis})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		got := make([]byte, 5)
		if _, err := io.WriteString(conn, "AUTH word\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "+OK\r\n" {
			t.Fatalf("%q, %v", got, err)
		}
		if err := c.DeletePreview(t.Context(), "db", "redis"); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if n, err := conn.Read(got); n > 0 || os.IsTimeout(err) {
			t.Errorf("its preview is deleted, and it goes on: %v", err)
		}
	})

	t.Run("doze", func(t *testing.T) {
		s := shell{t.TempDir()}
		doze := func(stdin string, args ...string) (out, errs string) {
			t.Helper()
			cmd := s.command(t, append([]string{"doze"}, args...)...)
			cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+cert)
			var o, e bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &o, &e
			if err := cmd.Run(); err != nil {
				t.Fatalf("%q: %v: %s", args, err, e.String())
			}
			return o.String(), e.String()
		}
		doze(p.Key+"\n", "login", "--address", "https://"+listen)
		if out, _ := doze("", "preview", "ls", "db"); !strings.Contains(out, " "+net.JoinHostPort(pg, port)) || !strings.Contains(out, "https://"+page) {
			t.Error(out)
		}
		out, errs := doze("", "preview", "create", "db", "hidden", "--port", "5432")
		if !strings.HasSuffix(strings.TrimSpace(out), ":"+port) || strings.Contains(out, "/") || !strings.Contains(errs, "--public") {
			t.Errorf("%q, %q", out, errs)
		}
	})

	t.Run("its own certificate", func(t *testing.T) {
		sb.Spec.Runtime.Ports[0].Protocol = "TLS"
		if _, err := c.Update(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		out, ok := says("psql", "-X", "-q", "-t", "-A", "-c", "select count(*) from t", "host="+pg+" hostaddr=127.0.0.1 port="+port+" dbname=app user=app sslmode=require")
		if !ok || out != "2" {
			t.Errorf("%s", out)
		}
		if out, ok := psql(pg, "select 1"); ok || !strings.Contains(out, "certificate verify failed") {
			t.Errorf("TLS ended at the platform: %s", out)
		}
	})
}
