package postgres

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Rows are what the tables of a database have at one moment, by table.
type Rows map[string][]byte

// Read returns the rows of a database that others may be using.
func Read(tb testing.TB, address string) Rows {
	tb.Helper()
	rows := Rows{}
	transact(tb, address, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(ctx context.Context, c *pgx.Conn) error {
		tables, err := c.Query(ctx, `SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()`)
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(tables, pgx.RowTo[string])
		for _, name := range names {
			var b bytes.Buffer
			_, failed := c.PgConn().CopyTo(ctx, &b, "COPY "+name+" TO STDOUT")
			rows[name], err = b.Bytes(), cmp.Or(err, failed)
		}
		return err
	})
	return rows
}

// Write makes rows those of a database that has the same tables and that nobody
// uses.
func Write(tb testing.TB, address string, rows Rows) {
	tb.Helper()
	transact(tb, address, pgx.TxOptions{}, func(ctx context.Context, c *pgx.Conn) error {
		// As replicas do, it takes rows in any order. To truncate takes a file for
		// each table and index.
		_, err := c.Exec(ctx, "SET LOCAL session_replication_role = replica; DELETE FROM "+
			strings.Join(slices.Collect(maps.Keys(rows)), "; DELETE FROM "))
		for name, text := range rows {
			if len(text) > 0 {
				_, failed := c.PgConn().CopyFrom(ctx, bytes.NewReader(text), "COPY "+name+" FROM STDIN")
				err = cmp.Or(err, failed)
			}
		}
		return err
	})
}

// transact runs a transaction on a connection of its own: one that belongs to a
// bubble of [testing/synctest] ends with it.
func transact(tb testing.TB, address string, o pgx.TxOptions, fn func(context.Context, *pgx.Conn) error) {
	tb.Helper()
	ctx := tb.Context()
	err := func() error {
		c, err := pgx.Connect(ctx, address)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close(ctx) }()
		return pgx.BeginTxFunc(ctx, c, o, func(tx pgx.Tx) error { return fn(ctx, tx.Conn()) })
	}()
	if err != nil {
		tb.Fatal(fmt.Errorf("copy a database: %w", err))
	}
}
