// Package recipe reads Dockerfiles: which images a build of one needs.
package recipe

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// scratch is the base that is no image.
const scratch = "scratch"

// A MistakeError is a Dockerfile that cannot be built.
type MistakeError struct {
	Text string
	// Limit says that the Dockerfile exceeds a bound of ours. BuildKit finds all other mistakes.
	Limit bool
}

// Error implements error.
func (m *MistakeError) Error() string { return m.Text }

// Needs are the images that a build needs, sorted.
type Needs struct {
	Images   []string // of the platform or of registries
	Provided []string // those that the builder itself has
	Unused   []string // build arguments that no ARG of the Dockerfile names
	Bases    []Base   // in the order of the walk
}

// A Base is a FROM that names an image. It is the first step of its stage.
type Base struct {
	Image string // as the Dockerfile spells it, after arguments were put in
	Stage string // its name as BuildKit shows it
	Steps int    // of the stage
	Line  int    // of the Dockerfile
}

// Read returns the images that the stages name of which a target is made: in FROM, COPY
// --from and RUN --mount=from. Each is spelled as the Dockerfile does, after arguments were
// put in. An empty target is the last stage. Errors are *[MistakeError].
//
// Instructions that an image has in ONBUILD are unknown here. BuildKit finds what they name
// in a registry.
func Read(dockerfile []byte, target string, args map[string]string) (Needs, error) {
	if len(dockerfile) > buildapi.DockerfileMax {
		return Needs{}, limit("has %d bytes, more than %d", len(dockerfile), buildapi.DockerfileMax)
	}
	parsed, err := parser.Parse(bytes.NewReader(dockerfile))
	if err != nil {
		return Needs{}, &MistakeError{Text: "the Dockerfile: " + err.Error()}
	}
	stages, metaArgs, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return Needs{}, &MistakeError{Text: "the Dockerfile: " + err.Error()}
	}
	if len(stages) == 0 {
		return Needs{}, &MistakeError{Text: "the Dockerfile has no FROM"}
	}
	p := &planner{stages: stages, lex: shell.NewLex(parsed.EscapeToken), found: map[string]bool{}, layers: map[int]int{}}
	if err := p.declare(metaArgs, args); err != nil {
		return Needs{}, err
	}
	last := len(stages) - 1
	if target != "" {
		n, ok := p.stage(target, len(stages))
		if !ok {
			return Needs{}, &MistakeError{Text: fmt.Sprintf("the Dockerfile has no stage %.200q; its stages are %s", target, p.names())}
		}
		last = n
	}
	if err := p.visit(last); err != nil {
		return Needs{}, err
	}
	if len(p.found) > buildapi.ImagesMax {
		return Needs{}, limit("names %d images, more than %d", len(p.found), buildapi.ImagesMax)
	}
	var needs Needs
	for _, name := range slices.Sorted(maps.Keys(p.found)) {
		if provided(name) {
			needs.Provided = append(needs.Provided, name)
		} else {
			needs.Images = append(needs.Images, name)
		}
	}
	needs.Unused, needs.Bases = unused(stages, metaArgs, args), p.bases
	return needs, nil
}

// predefined are build arguments that count without an ARG (Dockerfile reference,
// "Predefined ARGs" and "BuildKit built-in build args").
var predefined = regexp.MustCompile(`^((?i:(https?|ftp|no|all)_proxy)|BUILDKIT_.*|SOURCE_DATE_EPOCH|(BUILD|TARGET)(PLATFORM|OS|ARCH|VARIANT))$`)

// unused returns the arguments that no ARG names, sorted.
func unused(stages []instructions.Stage, metaArgs []instructions.ArgCommand, args map[string]string) (names []string) {
	declared := map[string]bool{}
	declare := func(command *instructions.ArgCommand) {
		for _, arg := range command.Args {
			declared[arg.Key] = true
		}
	}
	for i := range metaArgs {
		declare(&metaArgs[i])
	}
	for _, s := range stages {
		for _, command := range s.Commands {
			if arg, ok := command.(*instructions.ArgCommand); ok {
				declare(arg)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !declared[name] && !predefined.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

// planner walks from a stage to those that it needs.
type planner struct {
	stages []instructions.Stage
	lex    *shell.Lex
	env    []string // NAME=value of the arguments before the first FROM
	found  map[string]bool
	bases  []Base
	layers map[int]int // of the stages that were visited, with those below
}

// declare evaluates the arguments before the first FROM.
func (p *planner) declare(metaArgs []instructions.ArgCommand, args map[string]string) error {
	platform := map[string]string{
		"BUILDPLATFORM": "linux/" + runtime.GOARCH, "BUILDOS": "linux", "BUILDARCH": runtime.GOARCH, "BUILDVARIANT": "",
		"TARGETPLATFORM": "linux/" + runtime.GOARCH, "TARGETOS": "linux", "TARGETARCH": runtime.GOARCH, "TARGETVARIANT": "",
	}
	for _, name := range slices.Sorted(maps.Keys(platform)) {
		p.env = append(p.env, name+"="+platform[name])
	}
	for _, command := range metaArgs {
		for _, arg := range command.Args {
			value := arg.Value
			if given, ok := args[arg.Key]; ok {
				p.env = append(p.env, arg.Key+"="+given)
				continue
			}
			if value == nil {
				continue
			}
			expanded, err := p.expand(*value)
			if err != nil {
				return err
			}
			p.env = append(p.env, arg.Key+"="+expanded)
		}
	}
	return nil
}

// expand puts arguments into a word.
func (p *planner) expand(word string) (string, error) {
	out, _, err := p.lex.ProcessWord(word, shell.EnvsFromSlice(p.env))
	if err != nil {
		return "", &MistakeError{Text: fmt.Sprintf("the Dockerfile: %.200q: %v", word, err)}
	}
	return out, nil
}

// stage finds a stage before another one by its name or its number.
func (p *planner) stage(name string, before int) (int, bool) {
	for n := before - 1; n >= 0; n-- { // of two with one name, the last counts
		if strings.EqualFold(p.stages[n].Name, name) && name != "" {
			return n, true
		}
	}
	n, err := strconv.Atoi(name)
	return n, err == nil && n >= 0 && n < before
}

// names lists the stages for a message.
func (p *planner) names() string {
	var names []string
	for i, s := range p.stages {
		if s.Name != "" {
			names = append(names, s.Name)
		} else {
			names = append(names, strconv.Itoa(i))
		}
	}
	return strings.Join(names, ", ")
}

// visit adds what a stage and those below it name.
func (p *planner) visit(n int) error {
	if _, seen := p.layers[n]; seen {
		return nil
	}
	p.layers[n] = 0
	s := p.stages[n]
	base, err := p.expand(s.BaseName)
	if err != nil {
		return err
	}
	if base == "" {
		return &MistakeError{Text: fmt.Sprintf("the Dockerfile: line %d: FROM %s names nothing; give the build argument a value", line(s), s.BaseName)}
	}
	below, known := p.stage(base, n)
	if _, err := strconv.Atoi(base); err == nil {
		known = false // FROM knows names of stages, not numbers
	}
	if err := p.need(base, below, known); err != nil {
		return err
	}
	switch {
	case known:
		p.layers[n] = p.layers[below]
	case base != scratch:
		p.bases = append(p.bases, Base{Image: base, Stage: p.shown(n), Steps: 1 + steps(s), Line: line(s)})
	}
	for _, command := range s.Commands {
		for _, from := range sources(command) {
			from, err := p.expand(from)
			if err != nil {
				return err
			}
			below, known := p.stage(from, n)
			if err := p.need(from, below, known); err != nil {
				return err
			}
		}
	}
	if p.layers[n] += steps(s); p.layers[n] > buildapi.StepsMax {
		return limit("makes %d layers, more than %d; have one RUN do what several do", p.layers[n], buildapi.StepsMax)
	}
	return nil
}

// steps is how many instructions of a stage BuildKit numbers, besides FROM. Each makes a layer.
func steps(s instructions.Stage) (n int) {
	for _, command := range s.Commands {
		switch command.(type) {
		case *instructions.RunCommand, *instructions.CopyCommand, *instructions.AddCommand, *instructions.WorkdirCommand:
			n++
		}
	}
	return n
}

// shown is the name that BuildKit shows for a stage. It shows none if nothing else is named.
func (p *planner) shown(n int) string {
	others := slices.ContainsFunc(p.stages[n].Commands, func(c instructions.Command) bool { return len(sources(c)) > 0 })
	if len(p.stages) == 1 && !others {
		return ""
	}
	return cmp.Or(p.stages[n].Name, "stage-"+strconv.Itoa(n))
}

// limit returns a mistake about a bound of ours.
func limit(format string, args ...any) error {
	return &MistakeError{Text: "the Dockerfile " + fmt.Sprintf(format, args...), Limit: true}
}

// line is where a stage begins.
func line(s instructions.Stage) int {
	if len(s.Location) == 0 {
		return 0
	}
	return s.Location[0].Start.Line
}

// need notes an image, or visits a stage.
func (p *planner) need(name string, below int, isStage bool) error {
	if isStage {
		return p.visit(below)
	}
	if name != scratch && name != "" {
		p.found[name] = true
	}
	return nil
}

// sources are the names after "from" of a command.
func sources(command instructions.Command) (names []string) {
	switch c := command.(type) {
	case *instructions.CopyCommand:
		names = append(names, c.From)
	case *instructions.RunCommand:
		for _, m := range instructions.GetMounts(c) {
			names = append(names, m.From)
		}
	}
	return slices.DeleteFunc(names, func(s string) bool { return s == "" })
}

// agentImage is what clients copy their agent from: COPY --from=ghcr.io/blaxel-ai/sandbox:latest
// /sandbox-api /usr/local/bin/sandbox-api. This platform mounts an agent of its own.
const agentImage = "ghcr.io/blaxel-ai/sandbox"

// provided reports whether the builder itself has an image.
func provided(name string) bool {
	rest, ok := strings.CutPrefix(name, agentImage)
	return ok && (rest == "" || rest[0] == ':' || rest[0] == '@')
}
