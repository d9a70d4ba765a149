package store

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pressly/goose/v3"
)

const (
	// pieceLength is how many characters of a search the index tells apart. Names
	// and display names have no more.
	pieceLength = 64
	// piecesMax bounds the rows of a record, which its labels could make ten
	// thousands. One with more has a row that every search finds.
	piecesMax = 400
	// pieceBatch of records are indexed at a time when the index is made: enough
	// that neighbours in it come together, in some 10 MB.
	pieceBatch = 5000
)

// pieces are what the index has of a text: the rest of each value from each of
// its characters on, cut off. Whatever is in a value is the beginning of one.
func pieces(text string) []string {
	if utf8.RuneCountInString(text) > piecesMax {
		return []string{""}
	}
	all := map[string]bool{}
	for value := range strings.SplitSeq(text, between) {
		for i := range value {
			all[beginning(value[i:])] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// beginning is as much of a value as a piece has.
func beginning(text string) string {
	n := 0
	for i := range text {
		if n == pieceLength {
			return text[:i]
		}
		n++
	}
	return text
}

// withPiece is the query for the sandboxes of a workspace, an argument, that may
// have a text; arg adds an argument.
func withPiece(workspace, text string, arg func(any) string) string {
	first, _, _ := strings.Cut(strings.ToLower(text), between)
	from := beginning(first)
	beyond := from + strings.Repeat(string(utf8.MaxRune), pieceLength)
	in := "SELECT uid FROM sandbox_pieces WHERE workspace = " + workspace + " AND piece "
	return in + ">= " + arg(from) + " AND piece < " + arg(beyond) + " UNION ALL " + in + "= ''"
}

// A searched is a sandbox and what it is searched for.
type searched struct{ uid, workspace, text string }

func scanSearched(r row) (v searched, err error) { return v, r.Scan(&v.uid, &v.workspace, &v.text) }

// index adds the pieces of sandboxes, in their order: neighbours share a page.
func index(ctx context.Context, tx *sql.Tx, all ...searched) error {
	type piece struct{ workspace, text, uid string }
	var rows []piece
	for _, v := range all {
		for _, text := range pieces(v.text) {
			rows = append(rows, piece{v.workspace, text, v.uid})
		}
	}
	slices.SortFunc(rows, func(a, b piece) int {
		return cmp.Or(strings.Compare(a.workspace, b.workspace), strings.Compare(a.text, b.text), strings.Compare(a.uid, b.uid))
	})
	for some := range slices.Chunk(rows, listMax) {
		marks, args := make([]string, len(some)), []any{}
		for i, p := range some {
			marks[i] = fmt.Sprintf("($%d, $%d, $%d)", 3*i+1, 3*i+2, 3*i+3)
			args = append(args, p.workspace, p.text, p.uid)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO sandbox_pieces (workspace, piece, uid) VALUES `+strings.Join(marks, ", ")+` ON CONFLICT DO NOTHING`, args...) //nolint:gosec // G202: what is added are the names of parameters
		if err != nil {
			return err
		}
	}
	return nil
}

// unindex removes the pieces of sandboxes.
func unindex(ctx context.Context, tx *sql.Tx, all ...searched) error {
	for _, v := range all {
		marks, args := listOf(pieces(v.text))
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`DELETE FROM sandbox_pieces WHERE piece IN (%s) AND workspace = $%d AND uid = $%d`,
			marks, len(args)+1, len(args)+2), append(args, v.workspace, v.uid)...)
		if err != nil {
			return err
		}
	}
	return nil
}

// indexAll is the migration that indexes the sandboxes which were there before
// the index.
func indexAll() *goose.Migration {
	return goose.NewGoMigration(20, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		for last := ""; ; {
			all, err := collect(ctx, tx, scanSearched, `SELECT uid, workspace, search FROM sandboxes WHERE uid > $1 ORDER BY uid LIMIT $2`, last, pieceBatch)
			if err != nil || len(all) == 0 {
				return err
			}
			if err := index(ctx, tx, all...); err != nil {
				return err
			}
			last = all[len(all)-1].uid
		}
	}}, nil)
}
