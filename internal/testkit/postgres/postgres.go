// Package postgres runs a PostgreSQL server for the tests of a package, from the host's
// installation. A test binary has one server, which the first test starts. Each test
// has a database.
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

const (
	// startTime bounds the start of a server on a machine that is busy.
	startTime = 2 * time.Minute
	retryTime = 50 * time.Millisecond
	// programs is where Debian has them; they are not in the PATH.
	programs = "/usr/lib/postgresql/*/bin"
	missing  = "there is no PostgreSQL on this host: install it with make deps-test"
)

// server is the one of this process.
type server struct {
	dir   string
	cmd   *exec.Cmd
	admin *sql.DB
	ended chan error
	count atomic.Int64 // of databases
}

// shared is the server once somebody asked for it.
var shared struct {
	sync.Mutex
	*server // guarded by Mutex
}

// Main runs the tests of a package and stops the server after them. It is for
// TestMain.
func Main(m *testing.M) {
	defer stop()
	m.Run()
}

// Database returns the address of a database that is empty, for as long as tb
// lasts. Its locale is not that of programs, which order text by its bytes.
func Database(tb testing.TB) string {
	tb.Helper()
	s, err := started(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	name := fmt.Sprint("t", s.count.Add(1))
	s.exec(tb, tb.Context(), `CREATE DATABASE `+name+` TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'`)
	tb.Cleanup(func() { s.exec(tb, context.WithoutCancel(tb.Context()), `DROP DATABASE `+name+` WITH (FORCE)`) })
	return s.address(name)
}

// Refuse ends all connections to a database and lets nobody in, until Admit.
func Refuse(tb testing.TB, address string) {
	tb.Helper()
	admit(tb, address, false)
	Break(tb, address)
}

// Admit is the opposite of [Refuse].
func Admit(tb testing.TB, address string) {
	tb.Helper()
	admit(tb, address, true)
}

// Break ends all connections to a database.
func Break(tb testing.TB, address string) {
	tb.Helper()
	shared.exec(tb, tb.Context(), `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1`, nameIn(tb, address))
}

// Dump returns every row of a database as text.
func Dump(tb testing.TB, address string) (rows []byte) {
	tb.Helper()
	db, err := sql.Open("pgx", address)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := db.QueryRowContext(tb.Context(), `SELECT database_to_xml(true, false, '')::text`).Scan(&rows); err != nil {
		tb.Fatal(err)
	}
	return rows
}

func admit(tb testing.TB, address string, who bool) {
	tb.Helper()
	shared.exec(tb, tb.Context(), fmt.Sprintf(`ALTER DATABASE %s ALLOW_CONNECTIONS %t`, nameIn(tb, address), who))
}

func nameIn(tb testing.TB, address string) string {
	tb.Helper()
	u, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	return u.Path[1:]
}

func (s *server) exec(tb testing.TB, ctx context.Context, text string, args ...any) { //nolint:revive // tb goes first, as everywhere
	tb.Helper()
	if _, err := s.admin.ExecContext(ctx, text, args...); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
}

func (s *server) address(database string) string {
	return "postgres://doze@/" + database + "?" + url.Values{"host": {s.dir}}.Encode()
}

// started returns the server, which the first caller starts.
func started(ctx context.Context) (*server, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := start(ctx)
		if err != nil {
			return nil, fmt.Errorf("start PostgreSQL: %w", err)
		}
		shared.server = s
	}
	return shared.server, nil
}

func start(ctx context.Context) (_ *server, err error) {
	dir, err := os.MkdirTemp("", "doze-postgres-")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	ctx = context.WithoutCancel(ctx) // it outlives the first test that needs it
	program, who, err := Init(ctx, dir)
	if err != nil {
		return nil, err
	}
	s.cmd = exec.CommandContext(ctx, program, append(Arguments(dir), "-c", "listen_addresses=")...) //nolint:gosec // it is PostgreSQL's own
	// If the tests are killed, it ends at once too.
	s.cmd.Dir, s.cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: who, Pdeathsig: syscall.SIGQUIT}
	if s.cmd.Stderr, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	begun := make(chan error)
	go func() { // ends with the server, see stop
		runtime.LockOSThread() // the signal comes when the thread ends
		if err := s.cmd.Start(); err != nil {
			begun <- err
			return
		}
		begun <- nil
		s.ended <- s.cmd.Wait()
	}()
	if err := <-begun; err != nil {
		s.cmd = nil
		return nil, err
	}
	if s.admin, err = sql.Open("pgx", s.address("postgres")); err != nil {
		return nil, err
	}
	return s, s.answers(ctx)
}

// Init makes a cluster in a directory, in which the superuser doze needs no password. It returns
// the path of the server, and who it has to run as: nil is the caller. [Arguments] has its
// arguments.
func Init(ctx context.Context, dir string) (program string, who *syscall.Credential, err error) {
	bins, _ := filepath.Glob(programs) // the pattern is good
	if len(bins) == 0 {
		return "", nil, errors.New(missing)
	}
	bin := slices.Max(bins)
	if who, err = unprivileged(dir); err != nil {
		return "", nil, err
	}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), //nolint:gosec // it is PostgreSQL's own
		"--pgdata", cluster(dir), "--username=doze", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = dir, &syscall.SysProcAttr{Credential: who}
	if out, err := initdb.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	return filepath.Join(bin, "postgres"), who, nil
}

// Arguments are those of a server of the cluster that Init made in a directory, with its
// socket there. It is small, and trusts the host not to lose power.
func Arguments(dir string) []string {
	return []string{
		"-D", cluster(dir), "-k", dir, "-c", "fsync=off", "-c", "full_page_writes=off",
		"-c", "shared_buffers=16MB", "-c", "max_connections=300", "-c", "autovacuum=off",
	}
}

// cluster is where the data of a server is.
func cluster(dir string) string { return filepath.Join(dir, "data") }

// unprivileged is who PostgreSQL runs as, since it refuses root, and gives them
// the directory. It is nil for anybody but root.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres") // Debian's package makes it
	if err != nil {
		return nil, fmt.Errorf("%s: %w", missing, err)
	}
	var ids [2]uint32
	for i, text := range []string{u.Uid, u.Gid} {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, err
		}
		ids[i] = uint32(id)
	}
	return &syscall.Credential{Uid: ids[0], Gid: ids[1]}, os.Chown(dir, int(ids[0]), int(ids[1]))
}

// answers waits until the server does.
func (s *server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	retry := time.NewTicker(retryTime)
	defer retry.Stop()
	for {
		err := s.admin.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-retry.C:
		case gone := <-s.ended:
			s.ended <- gone
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("it ended: %w: %s", gone, log)
		case <-ctx.Done():
			return err
		}
	}
}

// stop ends the server of this process, if there is one.
func stop() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		if err := shared.stop(); err != nil {
			panic(err)
		}
	}
}

// stop ends a server and removes what it has on disk.
func (s *server) stop() error {
	if s.admin != nil {
		_ = s.admin.Close()
	}
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGQUIT) // its data is of no use any more
		<-s.ended                                 //nolint:errcheck // it was told to end
	}
	return os.RemoveAll(s.dir)
}
