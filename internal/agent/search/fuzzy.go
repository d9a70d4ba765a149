package search

import (
	"cmp"
	"context"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dozehq/doze"
)

const (
	fuzzyDefault = 20
	// queryMax bounds a query; a path is not longer.
	queryMax = 4096
)

// Fuzzy looks for files and directories whose path has the letters of a query
// in their order. Make it with [ParseFuzzy].
type Fuzzy struct {
	scope
	query string
}

// Ranked is what a [Fuzzy] found.
type Ranked struct {
	Matches    []RankedMatch `json:"matches"` // the best first
	Total      int           `json:"total"`   // of matches here
	Incomplete bool          `json:"incomplete,omitzero"`
}

// RankedMatch is one file or directory. Scores compare within one answer only.
type RankedMatch struct {
	Path  string `json:"path"` // relative to the root
	Score int    `json:"score"`
	Type  string `json:"type"` // "file" or "directory"
}

// ParseFuzzy reads a query: query, patterns, maxResults, excludeDirs and
// excludeHidden. Errors are Invalid.
func ParseFuzzy(q url.Values) (f Fuzzy, err error) {
	var p doze.Problems
	f.scope = parseScope(q, fuzzyDefault, &p)
	f.query = q.Get("query")
	if f.query == "" {
		p.Add("query", "is required, or a last element of the path")
	}
	checkLength(&p, f.query)
	return f, p.Err()
}

// Like returns a [Fuzzy] for a query, with at most results. Errors are Invalid.
func Like(query string, results int) (Fuzzy, error) {
	return ParseFuzzy(url.Values{"query": {query}, "maxResults": {strconv.Itoa(results)}})
}

// In searches root, absolute. Errors are those of [Find.In].
func (f Fuzzy) In(ctx context.Context, root string) (Ranked, error) {
	all := []RankedMatch{}
	query, found := strings.ToLower(f.query), 0
	cut, err := f.walk(ctx, root, func(e entry) error {
		if e.kind == file && !matchesAny(f.patterns, path.Base(e.rel)) {
			return nil
		}
		if score := rank(query, e.rel); score > 0 {
			all = append(all, RankedMatch{e.rel, score, e.kind})
			found++
		}
		if len(all) >= 2*f.max { // enough to drop the worse half
			all = best(all, f.max)
		}
		return nil
	})
	all = best(all, f.max)
	return Ranked{all, len(all), cut || f.all && found > len(all)}, err
}

// best returns the first n of all in the order of an answer.
func best(all []RankedMatch, n int) []RankedMatch {
	slices.SortFunc(all, func(a, b RankedMatch) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(len(a.Path), len(b.Path)), cmp.Compare(a.Path, b.Path))
	})
	return all[:min(n, len(all))]
}

// What a letter of the query is worth, and what it is worth more.
const (
	perLetter   = 16
	perRun      = 16 // right after the one before
	perWord     = 12 // at the beginning of a word
	perBaseName = 64 // the base name alone has all letters
	perPrefix   = 64 // the base name begins with the query
	perWhole    = 128
)

// rank scores a path for a query in lower case; 0 means that it does not match.
func rank(query, rel string) int {
	base := path.Base(rel)
	score := letters(query, base)
	switch lower := strings.ToLower(base); {
	case score == 0:
		return letters(query, rel)
	case lower == query:
		score += perWhole
	case strings.HasPrefix(lower, query):
		score += perPrefix
	}
	return score + perBaseName
}

// letters scores where the letters of the query are in text: from the end on,
// so that the part of a path that says most counts. Each is taken at the last
// place possible.
func letters(query, text string) (score int) {
	next := -1 // where the letter after it is
	for query != "" {
		want, n := utf8.DecodeLastRuneInString(query)
		query = query[:len(query)-n]
		for {
			if text == "" {
				return 0
			}
			got, n := utf8.DecodeLastRuneInString(text)
			text = text[:len(text)-n]
			if unicode.ToLower(got) != want {
				continue
			}
			score += perLetter
			if len(text)+n == next {
				score += perRun
			}
			if before, _ := utf8.DecodeLastRuneInString(text); text == "" || !unicode.IsLetter(before) && !unicode.IsDigit(before) || unicode.IsUpper(got) && unicode.IsLower(before) {
				score += perWord
			}
			next = len(text)
			break
		}
	}
	return score
}
