package doze_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// wordsMost is the longest sentence that a reader takes in at once.
const wordsMost = 25

// TestSentencesAreShort: each sentence of README.md and of docs has at most
// wordsMost words. Code in backquotes is one word, and a cell of a table is a
// paragraph.
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
		p = linkText.ReplaceAllString(inline.ReplaceAllString(p, "X"), "$1")
		for p != "" {
			s, rest := p, ""
			if at := sentence.FindStringIndex(p); at != nil {
				s, rest = p[:at[0]+1], p[at[0]+1:]
			}
			words := 0
			for w := range strings.FieldsSeq(s) {
				if hasLetters.MatchString(w) {
					words++
				}
			}
			if words > wordsMost {
				long = append(long, strings.TrimSpace(s))
			}
			p = rest
		}
	}
	return long
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
