package tool

import (
	"context"
	"encoding/json"
	"path"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/file"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/search"
)

const toolFindMax = 10 // results

type toolFindIn struct {
	Query     string  `json:"query" jsonschema:"letters of the path, in their order"`
	Directory *string `json:"directory,omitempty" jsonschema:"where to look, inside the workspace"`
}

type toolFindOut struct {
	Success bool     `json:"success"`
	Matches []string `json:"matches"`
	Query   string   `json:"query"`
}

// within finds the place of a directory of the workspace.
func (b *Set) within(dir string) (place.Place, error) {
	at, err := b.places.Find(dir)
	if err == nil && at.Abs != b.places.WorkDir() && !strings.HasPrefix(at.Abs, strings.TrimSuffix(b.places.WorkDir(), "/")+"/") {
		err = doze.Errorf(doze.Invalid, "%s is outside of the workspace %s", at.Shown, b.places.WorkDir())
	}
	return at, err
}

func (b *Set) toolFind(ctx context.Context, in toolFindIn) (out toolFindOut, err error) {
	at, err := b.within(value(in.Directory))
	if err != nil {
		return out, err
	}
	like, err := search.Like(in.Query, toolFindMax)
	if err != nil {
		return out, err
	}
	found, err := like.In(ctx, at.Abs)
	out = toolFindOut{true, []string{}, in.Query}
	for _, m := range found.Matches {
		out.Matches = append(out.Matches, path.Join(at.Abs, m.Path))
	}
	return out, err
}

type toolMeaningIn struct {
	Query             string   `json:"query"`
	TargetDirectories []string `json:"targetDirectories,omitempty"`
}

type toolMeaningOut struct {
	Success bool     `json:"success"`
	Results []string `json:"results"`
	Query   string   `json:"query"`
}

func (b *Set) toolMeaning(_ context.Context, in toolMeaningIn) (toolMeaningOut, error) {
	return toolMeaningOut{true, []string{}, in.Query}, nil
}

type toolGrepIn struct {
	Query          string  `json:"query" jsonschema:"regular expression"`
	CaseSensitive  *bool   `json:"caseSensitive,omitempty"`
	IncludePattern *string `json:"includePattern,omitempty" jsonschema:"glob of files to search"`
	ExcludePattern *string `json:"excludePattern,omitempty" jsonschema:"glob of files to leave out"`
}

type toolGrepOut struct {
	Success bool   `json:"success"`
	Results string `json:"results"`
	Query   string `json:"query"`
}

// grepLine is a match as ripgrep writes it.
type grepLine struct {
	Type string   `json:"type"`
	Data grepData `json:"data"`
}

type grepData struct {
	Path           grepText       `json:"path"`
	Lines          grepText       `json:"lines"`
	LineNumber     int            `json:"line_number"`
	AbsoluteOffset int64          `json:"absolute_offset"`
	Submatches     []grepSubmatch `json:"submatches"`
}

type grepText struct {
	Text string `json:"text"`
}

// grepSubmatch is what the query found first in a line.
type grepSubmatch struct {
	Match grepText `json:"match"`
	Start int      `json:"start"`
	End   int      `json:"end"`
}

func (b *Set) toolGrep(ctx context.Context, in toolGrepIn) (out toolGrepOut, err error) {
	if in.Query == "" {
		return out, doze.Errorf(doze.Invalid, "query is required")
	}
	g, err := search.Regexp(in.Query, value(in.CaseSensitive), value(in.IncludePattern), value(in.ExcludePattern))
	if err != nil {
		return out, err
	}
	hits, err := g.In(ctx, b.places.WorkDir())
	if err != nil {
		return out, err
	}
	if len(hits.Matches) == 0 {
		return out, noHit(in.Query, b.places.WorkDir(), hits.Incomplete)
	}
	var lines strings.Builder
	enc := json.NewEncoder(&lines)
	for _, h := range hits.Matches {
		start := h.Column - 1
		line := grepLine{"match", grepData{
			grepText{h.Path}, grepText{h.Text + "\n"}, h.Line, h.Offset, []grepSubmatch{{grepText{h.Match}, start, start + len(h.Match)}},
		}}
		if err := enc.Encode(line); err != nil {
			return out, err
		}
	}
	return toolGrepOut{true, lines.String(), in.Query}, nil
}

// noHit says that a search found nothing, and whether it saw all.
func noHit(query, dir string, incomplete bool) error {
	if incomplete {
		return doze.Errorf(doze.TooLarge, "nothing matches %q in what was searched of %s, and there is more: search for less with excludePattern, or a smaller directory with processExecute", mistake.Clip(query), dir)
	}
	return doze.Errorf(doze.NotFound, "nothing matches %q in %s", mistake.Clip(query), dir)
}

type toolListDirIn struct {
	Path string `json:"relativeWorkspacePath" jsonschema:"relative to the working directory"`
}

type toolListDirOut struct {
	Success   bool           `json:"success"`
	Directory file.Directory `json:"directory"`
}

func (b *Set) toolListDir(_ context.Context, in toolListDirIn) (out toolListDirOut, err error) {
	at, err := b.within(in.Path)
	if err != nil {
		return out, err
	}
	d, err := file.List(at)
	return toolListDirOut{true, d}, err
}

// refusal is the result of a tool that needs a service which is not there.
type refusal struct {
	Success bool   `json:"success"`
	Message string `json:"message"`
}

type toolReapplyIn struct {
	TargetFile string `json:"targetFile"`
}

func (b *Set) toolReapply(context.Context, toolReapplyIn) (refusal, error) {
	return refusal{Message: "codegenReapply is not implemented here; use fsEditFile"}, nil
}

type toolParallelIn struct {
	EditPlan    string       `json:"editPlan"`
	EditRegions []editRegion `json:"editRegions"`
}

type editRegion struct {
	Path      string `json:"relativeWorkspacePath"`
	StartLine *int   `json:"startLine,omitempty"`
	EndLine   *int   `json:"endLine,omitempty"`
}

func (b *Set) toolParallelApply(context.Context, toolParallelIn) (refusal, error) {
	return refusal{Message: "codegenParallelApply is not implemented here; use fsEditFile"}, nil
}
