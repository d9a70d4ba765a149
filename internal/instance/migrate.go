package instance

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
)

// toFile is what --to is for records in the data directory.
const toFile = "sqlite"

// A Migration moves the records of a data directory to another kind of database.
type Migration struct {
	To     string // toFile, or the address of a PostgreSQL database
	ToFile string // a file with that address, which may have a password
	Bucket string // URL of the bucket of the fleet that the platform becomes
	Quiet  bool

	Out io.Writer
}

// Bind adds the flags that only dozed migrate has.
func (m *Migration) Bind(flags *flag.FlagSet) {
	flags.StringVar(&m.To, "to", "", "where the records go: the `URL` of an empty PostgreSQL database, or sqlite. Do not put a password here: use --to-file or ~/.pgpass")
	flags.StringVar(&m.ToFile, "to-file", "", "`file` with the URL of the PostgreSQL database, including its password")
	flags.StringVar(&m.Bucket, "bucket", "", "`URL` of the S3 bucket of the fleet that this platform becomes: the same as --remote, with --remote-credentials. It is tried before anything moves, and nodes copy to it what they have")
	flags.BoolVar(&m.Quiet, "quiet", false, "do not print each table")
}

// Do copies the records, compares both, and notes in the data directory where they are
// from now on. The database of before stays as it is. Nobody may serve the directory. Until
// the note is written, everything is as it was. A second attempt then finds the copy, and
// goes on from there if it is complete.
func (m *Migration) Do(ctx context.Context, s settings.Settings) error {
	if m.Bucket != "" {
		if s.Remote = m.Bucket; m.To == toFile {
			return doze.Errorf(doze.Invalid, "--bucket is for the way to a fleet: leave it out")
		}
	}
	if m.To != "" && m.ToFile != "" || m.To == "" && m.ToFile == "" {
		return doze.Errorf(doze.Invalid, "name the new place with --to, or with --to-file")
	}
	if !Served(s.Data) {
		return doze.Errorf(doze.NotFound, "%s is no data directory of dozed: name one with --data", s.Data)
	}
	unlock, err := Lock(s.Data)
	if err != nil {
		return fmt.Errorf("stop it first: %w", err)
	}
	defer unlock()
	to, kind, err := m.target(s)
	if err != nil {
		return err
	}
	was, err := recordsOf(s.Data)
	if err != nil {
		return err
	}
	if was == kind {
		return doze.Errorf(doze.Conflict, "the records of %s are there already: %s", s.Data, map[string]string{
			inDatabaseFile: "start dozed without --database", onServer: "start dozed with --database or --database-file",
		}[kind])
	}
	from, err := Where(s.Data, s.Database)
	if err != nil {
		return err
	}
	var has holdings
	if kind == onServer {
		has, err = m.leaveHome(ctx, s, from)
	} else {
		err = comeHome(ctx, s, from)
	}
	if err != nil {
		return err
	}
	rows := int64(0)
	sums, err := store.Copying{From: from, To: to, Alone: true, Copied: func(t store.Sum) {
		rows += t.Rows
		if !m.Quiet {
			fmt.Fprintf(m.Out, "%-26s %8d rows  %x\n", t.Table, t.Rows, t.Sum[:8])
		}
	}}.Do(ctx)
	if doze.Public(err).Kind == doze.Conflict && kind == inDatabaseFile {
		return doze.Wrap(err, doze.Conflict, "%s has other records, perhaps those of before the last move: move it away", to)
	}
	if err != nil {
		return fmt.Errorf("the records stay where they are: %w", err)
	}
	if err := setRecords(s.Data, kind); err != nil {
		return err
	}
	if rows == 0 {
		fmt.Fprintln(m.Out, "the new database had all of them, from an attempt of before")
	}
	fmt.Fprintf(m.Out, "%d tables are the same in both. The records of %s are %s\n", len(sums), s.Data, map[string]string{
		inDatabaseFile: "in its " + databaseFile + " now: start dozed without --database. Those on the server are as they were; drop that database when you do not need it any more",
		onServer:       "on the server now: start dozed with --database or --database-file. " + databaseFile + " is as it was; move it away when you do not need it any more",
	}[kind])
	if m.Bucket != "" {
		has.tell(m.Out, s)
	}
	return nil
}

// target is where the records go.
func (m *Migration) target(s settings.Settings) (address, kind string, err error) {
	if m.To == toFile {
		return DatabaseFile(s.Data), inDatabaseFile, nil
	}
	if store.HasPassword(m.To) && m.To != "" {
		return "", "", doze.Errorf(doze.Invalid, "every user of the host sees the password in --to: put the URL into a file for --to-file")
	}
	address = m.To
	if m.ToFile != "" {
		if address, err = settings.ReadAddress(m.ToFile); err != nil {
			return "", "", err
		}
	}
	if err := store.CheckAddress(address); err != nil {
		return "", "", doze.Errorf(doze.Invalid, "--to is neither %s nor the URL of a database: %s", toFile, strings.TrimSpace(doze.Public(err).Message))
	}
	return address, onServer, nil
}
