package recipe

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	t.Parallel()
	const stages = `
FROM golang:1.26 AS build
RUN --mount=type=bind,from=assets:2,target=/a make
FROM node:24 AS web
COPY --from=build /x /x
FROM unused:1 AS unused
FROM debian:12
COPY --from=web /x /y
COPY --from=0 /x /z
COPY --from=tools /t /t
`
	for name, c := range map[string]struct {
		text   string
		target string
		args   map[string]string
		want   Needs
	}{
		"one":             {"FROM busybox:1\nRUN true\n", "", nil, Needs{Images: []string{"busybox:1"}}},
		"scratch":         {"FROM scratch\nCOPY a b\n", "", nil, Needs{}},
		"stages":          {stages, "", nil, Needs{Images: []string{"assets:2", "debian:12", "golang:1.26", "node:24", "tools"}}},
		"target":          {stages, "build", nil, Needs{Images: []string{"assets:2", "golang:1.26"}}},
		"target number":   {stages, "1", nil, Needs{Images: []string{"assets:2", "golang:1.26", "node:24"}}},
		"any case":        {"FROM a AS One\nFROM b\nCOPY --from=oNE / /\n", "", nil, Needs{Images: []string{"a", "b"}}},
		"argument":        {"ARG V=12\nARG BASE=debian:${V}\nFROM $BASE\n", "", nil, Needs{Images: []string{"debian:12"}}},
		"given":           {"ARG V=12\nFROM debian:${V:-x}\n", "", map[string]string{"V": "13"}, Needs{Images: []string{"debian:13"}}},
		"default":         {"ARG V\nFROM debian:${V:-11}\n", "", nil, Needs{Images: []string{"debian:11"}}},
		"platform":        {"FROM --platform=$BUILDPLATFORM debian AS x\nFROM x\n", "", nil, Needs{Images: []string{"debian"}}},
		"a stage's name":  {"FROM a AS debian\nFROM debian\n", "", nil, Needs{Images: []string{"a"}}},
		"a later stage":   {"FROM later AS x\nFROM b AS later\nFROM x\n", "", nil, Needs{Images: []string{"later"}}},
		"the agent":       {"FROM a\nCOPY --from=ghcr.io/blaxel-ai/sandbox:v0.2 /sandbox-api /x\n", "", nil, Needs{Images: []string{"a"}, Provided: []string{"ghcr.io/blaxel-ai/sandbox:v0.2"}}},
		"not the agent":   {"FROM ghcr.io/blaxel-ai/sandboxes:1\n", "", nil, Needs{Images: []string{"ghcr.io/blaxel-ai/sandboxes:1"}}},
		"a local digest":  {"FROM app@sha256:" + strings.Repeat("0", 64) + "\n", "", nil, Needs{Images: []string{"app@sha256:" + strings.Repeat("0", 64)}}},
		"syntax and here": {"# syntax=docker/dockerfile:1\nFROM a\nRUN <<EOF\nFROM b\nEOF\n", "", nil, Needs{Images: []string{"a"}}},
	} {
		got, err := Read([]byte(c.text), c.target, c.args)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got.Bases = nil // see TestBases
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range buildapi.ImagesMax + 1 {
		fmt.Fprintf(&many, "COPY --from=i%d / /\n", i)
	}
	layers := strings.Repeat("RUN true\n", buildapi.StepsMax/2+1)
	for name, c := range map[string]struct{ text, target, want string }{
		"many layers": {"FROM a AS x\n" + layers + "FROM x\n" + layers, "", "layers, more than"},
		"empty":       {"", "", "the Dockerfile"},
		"no FROM":     {"RUN true\n", "", "the Dockerfile"},
		"unknown":     {"FROM a\nFLY b\n", "", "FLY"},
		"no argument": {"ARG X\nFROM $X\n", "", "line 2"},
		"no stage":    {"FROM a AS one\nFROM b\n", "two", "its stages are one, 1"},
		"too many":    {"FROM a\n" + many.String(), "", "more than"},
		"too large":   {"FROM a\n" + strings.Repeat("#", buildapi.DockerfileMax), "", "bytes"},
	} {
		_, err := Read([]byte(c.text), c.target, nil)
		if m, ok := errors.AsType[*MistakeError](err); !ok || !strings.Contains(m.Text, c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("ARG A=b\nFROM $A AS x\nRUN --mount=from=c true\nFROM x\nCOPY --from=0 a b\n"), "x")
	f.Add([]byte("# escape=`\nFROM a\nRUN <<E\nE\n"), "")
	f.Fuzz(func(t *testing.T, text []byte, target string) {
		needs, err := Read(text, target, map[string]string{"A": "c"})
		if err != nil {
			if _, ok := errors.AsType[*MistakeError](err); !ok {
				t.Errorf("not a mistake of the user: %v", err)
			}
			return
		}
		if len(needs.Images)+len(needs.Provided) > buildapi.ImagesMax {
			t.Errorf("%d images", len(needs.Images))
		}
	})
}

// TestBases: a FROM of an image has the number of its step, and one of a stage has none.
func TestBases(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Base{
		"FROM a\nENV X=1\nRUN x\nWORKDIR /y\n":                                {{"a", "", 3, 1}},
		"ARG B=b\nFROM ${B}:1 AS s\n":                                         {{"b:1", "", 1, 2}},
		"FROM scratch\nCOPY a /\n":                                            nil,
		"FROM a\nCOPY --from=img /x /\n":                                      {{"a", "stage-0", 2, 1}},
		"FROM a AS one\nRUN x\nFROM one\nRUN y\nFROM b\nCOPY --from=1 /x /\n": {{"b", "stage-2", 2, 5}, {"a", "one", 2, 1}},
	} {
		needs, err := Read([]byte(text), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(needs.Bases, want) {
			t.Errorf("%q: %+v, want %+v", text, needs.Bases, want)
		}
	}
}

func TestUnused(t *testing.T) {
	t.Parallel()
	const text = "ARG BASE=scratch\nFROM ${BASE} AS one\nARG A\nFROM one\nARG B=1 C\n"
	args := map[string]string{}
	for _, name := range []string{"BASE", "A", "B", "C", "a", "D", "HTTP_PROXY", "https_proxy", "NO_PROXY", "BUILDKIT_INLINE_CACHE", "SOURCE_DATE_EPOCH", "TARGETARCH", "proxy"} {
		args[name] = "scratch"
	}
	needs, err := Read([]byte(text), "", args)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"D", "a", "proxy"}; !slices.Equal(needs.Unused, want) {
		t.Errorf("%q, want %q", needs.Unused, want)
	}
}
