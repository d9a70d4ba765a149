package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/dozehq/doze/internal/testkit/postgres"
)

// planRecords makes the database server. It does not run as root, and cannot enter the
// directory of the fleet.
func (f *fleet) planRecords(ctx context.Context) (err error) {
	if f.records, err = os.MkdirTemp("", "doze-fleet-records-"); err != nil {
		return err
	}
	program, who, err := postgres.Init(ctx, f.records)
	if err != nil {
		return err
	}
	allowed, err := os.OpenFile(filepath.Join(f.records, "data", "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(allowed, "host all doze %s.0/24 trust\n", f.wire.subnet())
	if err = errors.Join(err, allowed.Close()); err != nil {
		return err
	}
	args := []string{"--reuid", fmt.Sprint(who.Uid), "--regid", fmt.Sprint(who.Gid), "--clear-groups", program}
	args = append(args, postgres.Arguments(f.records)...)
	f.all[recordsHost] = &process{
		host: recordsHost, program: "setpriv", args: append(args, "-c", "listen_addresses="+f.wire.hosts[recordsHost], "-p", recordsPort),
		log: filepath.Join(f.dir, recordsHost+".log"),
	}
	return nil
}

// database is the address of the records.
func (f *fleet) database() string {
	return "postgres://doze@" + f.at(recordsHost, recordsPort) + "/postgres"
}

// What the database server is asked.
const (
	answers = `SELECT true`
	// standsBy is whether a control waits for the lock of the active one.
	standsBy = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)`
)

// recorded waits until the database server answers yes to a question. It does something before
// each try.
func (f *fleet) recorded(ctx context.Context, question string, before ...func() error) (err error) {
	db, err := sql.Open("pgx", f.database())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = until(ctx, readyTime, func() error {
		for _, do := range before {
			if err := do(); err != nil {
				return err
			}
		}
		bounded, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		var is bool
		err := db.QueryRowContext(bounded, question).Scan(&is)
		if err == nil && !is {
			err = fmt.Errorf("the answer to %q is no", question)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, f.tail(recordsHost))
	}
	return nil
}
