package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

const (
	// dialTime bounds a new connection; a server that is there answers in
	// milliseconds.
	dialTime = 10 * time.Second
	// lostTime is how long a server or a dozed may be silent on a connection that
	// has something to say, until it counts as lost.
	lostTime = 25 * time.Second
	// claimTime is how long the database of a dozed that has just ended may take
	// to notice that.
	claimTime = 3 * time.Second
	// claimKey is what the one that writes locks: "doze" in ASCII.
	claimKey = 0x646f7a65
	// ownerSetting holds who wrote last.
	ownerSetting = "owner"
)

// States of PostgreSQL (SQLSTATE) that mean something to us.
const (
	stateUnique    = "23505"
	stateNoText    = "22021" // a NUL, or no UTF-8
	stateNoLock    = "55P03" // not within lock_timeout
	stateNoWriting = "25006" // it is a standby
)

// awayClasses are the classes of the states in which a server may be well again
// soon: connection, resources, an operator's intervention, its own system.
var awayClasses = []string{"08", "53", "57", "58"}

// onPostgres reports whether an address is one of PostgreSQL.
func onPostgres(address string) bool {
	return strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://")
}

// CheckAddress says what is wrong with the address of a PostgreSQL database. It
// does not repeat it, since there may be a password in it.
func CheckAddress(address string) error {
	_, err := parse(address)
	return err
}

// HasPassword reports whether there is a password in an address.
func HasPassword(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return true // one with odd letters is the usual mistake
	}
	_, has := u.User.Password()
	return has || u.Query().Has("password")
}

func parse(address string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(address)
	_, odd := url.Parse(address) // which pgx may take for something else
	if err != nil || odd != nil || !onPostgres(address) {
		// Not even the cause: its text may have a part of the password.
		return nil, doze.Errorf(doze.Invalid, "must be like postgres://USER@HOST:5432/NAME; special characters of a password are written as %%2F")
	}
	return config, nil
}

// openPostgres opens a database of a server. One connection writes, as in SQLite, so
// that the same guarantees hold. Writers come one after the other, and what a writer
// has read is still true when it writes. It has the database to itself as long as it
// lasts, see [tenure].
func openPostgres(address string) (*engine, error) {
	config, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	dialer := &net.Dialer{
		Timeout:         dialTime,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: lostTime / 5, Interval: lostTime / 5, Count: 4},
		Control:         bounded,
	}
	config.DialFunc, config.ConnectTimeout = dialer.DialContext, dialTime
	seconds := fmt.Sprint(int((lostTime / 5).Seconds()))
	maps.Copy(config.RuntimeParams, map[string]string{
		"application_name": "dozed", "tcp_keepalives_idle": seconds, "tcp_keepalives_interval": seconds, "tcp_keepalives_count": "4",
	})
	reading := config.Copy()
	reading.RuntimeParams["default_transaction_read_only"] = "on"
	t := &tenure{id: NewID()}
	return &engine{
		name: fmt.Sprintf("%s on %s", config.Database, config.Host), dialect: goose.DialectPostgres, migrations: ordered{migrations},
		write: stdlib.OpenDB(*config, stdlib.OptionAfterConnect(t.claim)), read: stdlib.OpenDB(*reading),
		begin: t.begin,
	}, nil
}

// bounded makes the kernel give up on what the other side does not confirm.
func bounded(network, _ string, c syscall.RawConn) (err error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(lostTime.Milliseconds()))
	}), err)
}

// ErrTaken is in the error about a database that another store has.
var ErrTaken = errors.New("another store has the database")

// Own returns an error unless the database is still this store's. With ErrTaken in it, it
// never will be again.
func (s *Store) Own(ctx context.Context) error {
	_, err := s.write.ExecContext(ctx, `SELECT 1`)
	return err
}

// A tenure is the time in which a database is one store's. The connection that
// writes holds a lock; it goes with the connection, and the next one takes it
// again. If another store had it meanwhile, it is that one's: what this one has
// in memory may be wrong.
type tenure struct {
	id    string
	begun atomic.Bool
}

// claim makes a new connection the one that writes, or closes it: nobody else
// would.
func (t *tenure) claim(ctx context.Context, c *pgx.Conn) error {
	err := t.lock(ctx, c)
	if err != nil {
		err = errors.Join(err, c.Close(ctx))
	}
	return err
}

func (t *tenure) lock(ctx context.Context, c *pgx.Conn) error {
	for _, text := range []string{
		fmt.Sprintf(`SET lock_timeout = %d`, claimTime.Milliseconds()),
		fmt.Sprintf(`SELECT pg_advisory_lock(%d)`, claimKey),
		`SET lock_timeout = DEFAULT`,
		// What was written is to be on disk, whatever the server's default.
		`SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`,
	} {
		if _, err := c.Exec(ctx, text); err != nil {
			return err
		}
	}
	if !t.begun.Load() {
		return nil
	}
	var owner string
	if err := c.QueryRow(ctx, `SELECT value FROM settings WHERE key = $1`, ownerSetting).Scan(&owner); err != nil {
		return err
	}
	if owner != t.id {
		return doze.Wrap(ErrTaken, doze.Unavailable, "another dozed has taken the database over: restart this one")
	}
	return nil
}

// begin notes that the database is this store's.
func (t *tenure) begin(ctx context.Context, s *Store) error {
	if err := s.SetSetting(ctx, ownerSetting, t.id); err != nil {
		return err
	}
	t.begun.Store(true)
	return nil
}

// ordered is migrations for PostgreSQL: text is ordered by its bytes, as in
// SQLite, whatever the locale of the database. Tables that are nothing but an
// index are tables there.
type ordered struct{ fs.FS }

// Open implements [fs.FS].
func (o ordered) Open(name string) (fs.File, error) {
	f, err := o.FS.Open(name)
	if err != nil || !strings.HasSuffix(name, ".sql") {
		return f, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return rewritten{f, strings.NewReader(strings.NewReplacer(" TEXT", ` TEXT COLLATE "C"`, " WITHOUT ROWID", "").Replace(string(text)))}, nil
}

// rewritten is a file with other content.
type rewritten struct {
	fs.File
	content io.Reader
}

// Read implements [fs.File].
func (r rewritten) Read(b []byte) (int, error) { return r.content.Read(b) }

func duplicateInPostgres(err error) bool { return state(err) == stateUnique }

// state is the SQLSTATE of an error of PostgreSQL, or "".
func state(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// classify says of an error of a database server what a caller can do about it.
func classify(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, known := errors.AsType[*doze.Error](err); known {
		return err
	}
	switch code := state(err); {
	case code == stateNoLock:
		return doze.Wrap(errors.Join(ErrTaken, err), doze.Unavailable, "another dozed uses the database: stop it first")
	case code == stateNoText:
		return doze.Wrap(err, doze.Invalid, "a text has a NUL in it, or is no UTF-8")
	case away(err, code):
		return doze.Wrap(err, doze.Unavailable, "the records are out of reach for a moment: try again")
	}
	return err
}

// broken reports whether a call met a connection that was lost meanwhile.
func broken(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	return !refused && away(err, state(err))
}

// away reports whether an error means that the server cannot be asked now.
func away(err error, code string) bool {
	for _, class := range awayClasses {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	if code == stateNoWriting || pgconn.SafeToRetry(err) {
		return true
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	for _, lost := range []error{driver.ErrBadConn, sql.ErrConnDone, pgx.ErrTxClosed, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, lost) {
			return true
		}
	}
	return false
}
