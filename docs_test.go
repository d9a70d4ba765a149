package doze_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code    = regexp.MustCompile("(?ms)^```.*?^```$|`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// generated are documents that a checkout may not have yet: make performance and make
// compatibility write them.
var generated = map[string]bool{"docs/performance.md": true, "docs/compatibility.md": true}

// TestLinksLeadSomewhere checks each relative link of README.md and of docs: its
// file exists, and has the heading that the link names.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	text := map[string]string{}
	for _, name := range pages(t) {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text[name] = code.ReplaceAllString(string(raw), "")
	}
	links := 0
	for name, page := range text {
		for _, found := range link.FindAllStringSubmatch(page, -1) {
			file, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(file, ":") {
				continue // elsewhere
			}
			links++
			at := name
			if file != "" {
				at = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(at); err != nil {
				if !generated[at] {
					t.Errorf("%s links to %s, which does not exist", name, found[1])
				}
				continue
			}
			if anchor != "" && !hasHeading(text[at], anchor) {
				t.Errorf("%s links to %s, which has no such heading", name, found[1])
			}
		}
	}
	if links < 50 {
		t.Errorf("%d links found", links)
	}
}

// pages returns README.md and all pages of docs.
func pages(t *testing.T) []string {
	t.Helper()
	names := []string{"README.md"}
	err := filepath.WalkDir("docs", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, ".md") {
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// hasHeading reports whether a page has a heading with an anchor, as web
// interfaces of git derive it.
func hasHeading(text, anchor string) bool {
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		slug := notSlug.ReplaceAllString(strings.ToLower(found[1]), "")
		if strings.ReplaceAll(slug, " ", "-") == anchor {
			return true
		}
	}
	return false
}
