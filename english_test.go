package doze_test

import (
	"go/ast"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// wordsMost is the longest sentence that a reader takes in at once.
const wordsMost = 25

// longCommentsMost is how many sentences of comments outside of tests have more than
// wordsMost words. It may only shrink: lower it after a rewrite.
const longCommentsMost = 306

// TestSentencesAreShort: each sentence of README.md and of docs has at most
// wordsMost words, as TestCommentsAreShort checks for Go. Code in
// backquotes is one word, and a cell of a table is a paragraph.
func TestSentencesAreShort(t *testing.T) {
	t.Parallel()
	for _, name := range pages(t) {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range longSentences(string(raw)) {
			t.Errorf("%s: a sentence of more than %d words: %s", name, wordsMost, s)
		}
	}
}

// pronounClauses stand in place of an actor: see the rules of plain English.
var pronounClauses = regexp.MustCompile(`(?i)\b(who(m|so)?ever|of one that|ones? whose)\b`)

// beginsWithWho finds a sentence that names no actor, and is no question.
var beginsWithWho = regexp.MustCompile(`^Who\b[^?]*$`)

// clausesLeft are the files that may have such clauses, and how many. It may only shrink.
var clausesLeft = map[string]int{
	"internal/fleet/desk/desk.go": 1,
}

// TestCommentsAreShort: see TestSentencesAreShort.
func TestCommentsAreShort(t *testing.T) {
	t.Parallel()
	var long []string
	for name, text := range comments(t) {
		for _, s := range longSentences(text) {
			long = append(long, name+": "+s)
		}
	}
	if len(long) > longCommentsMost {
		slices.Sort(long)
		t.Errorf("%d sentences of comments have more than %d words, and %d may:\n%s", len(long), wordsMost, longCommentsMost, strings.Join(long, "\n"))
	}
	if len(long) < longCommentsMost {
		t.Logf("lower longCommentsMost to %d", len(long))
	}
}

// TestCommentsNameTheActor: no clause with a pronoun stands for one.
func TestCommentsNameTheActor(t *testing.T) {
	t.Parallel()
	for name, text := range comments(t) {
		var clauses []string
		for _, p := range paragraphs(text) {
			for s := range sentences(p) {
				if beginsWithWho.MatchString(s) || pronounClauses.MatchString(s) {
					clauses = append(clauses, s)
				}
			}
		}
		if len(clauses) > clausesLeft[name] {
			t.Errorf("%s: name the actor with a noun: %q", name, clauses)
		}
	}
}

// comments returns the comments of each Go file that is neither a test nor generated, as
// Markdown: without code, and each comment in paragraphs of its own.
func comments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, f := range sources(t) {
		if strings.HasSuffix(name, "_test.go") || ast.IsGenerated(f) {
			continue
		}
		var text strings.Builder
		for _, c := range f.Comments {
			for line := range strings.Lines(c.Text()) {
				if !strings.HasPrefix(line, "\t") { // it is code
					text.WriteString(line)
				}
			}
			text.WriteString("\n")
		}
		all[filepath.ToSlash(name)] = text.String()
	}
	return all
}

func TestLongSentences(t *testing.T) {
	t.Parallel()
	words := func(n int) string { return "One" + strings.Repeat(" word", n-1) + "." }
	for text, want := range map[string]int{
		words(wordsMost):                               0,
		words(wordsMost + 1):                           1,
		words(wordsMost) + " " + words(wordsMost):      0,
		words(20) + "\n" + words(wordsMost+1):          1,
		"- " + words(20) + "\n- " + words(20):          0,
		"| " + words(20) + " | " + words(20) + " |":    0,
		"```\n" + words(99) + "\n```\n" + words(2):     0,
		"One `" + words(99) + "` word.":                0,
		"# " + strings.Repeat("word ", 99) + "\n\nOne": 0,
	} {
		if got := longSentences(text); len(got) != want {
			t.Errorf("%d long sentences in %q: %q", len(got), text, got)
		}
	}
}

var (
	fence      = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	inline     = regexp.MustCompile("`[^`]*`")
	linkText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	bullet     = regexp.MustCompile(`^([-*]|\d+\.)\s+`)
	sentence   = regexp.MustCompile(`[.!?][*)"”]*\s+["“(*]*[A-Z0-9]`)
	hasLetters = regexp.MustCompile(`[\pL\pN]`)
)

// longSentences returns those of a page of Markdown.
func longSentences(page string) (long []string) {
	for _, p := range paragraphs(page) {
		for s := range sentences(linkText.ReplaceAllString(inline.ReplaceAllString(p, "X"), "$1")) {
			words := 0
			for w := range strings.FieldsSeq(s) {
				if hasLetters.MatchString(w) {
					words++
				}
			}
			if words > wordsMost {
				long = append(long, s)
			}
		}
	}
	return long
}

// sentences returns those of a paragraph.
func sentences(p string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for p != "" {
			s, rest := p, ""
			if at := sentence.FindStringIndex(p); at != nil {
				s, rest = p[:at[0]+1], p[at[0]+1:]
			}
			if !yield(strings.TrimSpace(s)) {
				return
			}
			p = rest
		}
	}
}

// paragraphs returns the prose of a page: paragraphs, items of lists, and cells.
func paragraphs(page string) (all []string) {
	var now []string
	end := func() {
		if len(now) > 0 {
			all = append(all, strings.Join(now, " "))
		}
		now = nil
	}
	for line := range strings.Lines(fence.ReplaceAllString(page, "")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "|"):
			end()
			all = append(all, strings.Split(strings.Trim(line, "|"), " | ")...)
		case line == "", strings.HasPrefix(line, "#"), line == "---":
			end()
		default:
			if bullet.MatchString(line) {
				end()
				line = bullet.ReplaceAllString(line, "")
			}
			now = append(now, line)
		}
	}
	end()
	return all
}
