package tool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/file"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/route"
)

// toolReadMax bounds a file that a tool reads or edits: it is held in memory.
const toolReadMax = 4 << 20

// located names a file or a directory.
type located struct {
	Path string `json:"path" jsonschema:"absolute, or relative to the working directory"`
}

type toolPath struct {
	Path string `json:"path"`
}

func (b *Set) toolWorkDir(context.Context, none) (toolPath, error) {
	return toolPath{b.places.WorkDir()}, nil
}

type toolDirectory struct {
	Directory file.Directory `json:"directory"`
}

func (b *Set) toolList(_ context.Context, in located) (out toolDirectory, err error) {
	at, err := b.places.Find(in.Path)
	if err != nil {
		return out, err
	}
	d, err := file.List(at)
	return toolDirectory{d}, err
}

type toolFile struct {
	file.File
	Content string `json:"content"`
}

// content reads a text file whole.
func (b *Set) content(name string) (at place.Place, info fs.FileInfo, text []byte, err error) {
	if at, err = b.places.Find(name); err != nil {
		return at, nil, nil, err
	}
	if info, err = os.Stat(at.Abs); err != nil {
		return at, nil, nil, file.StatError(err)
	}
	if info.IsDir() {
		return at, nil, nil, doze.Errorf(doze.Unprocessable, "%s is a directory", at.Shown)
	}
	f, info, err := file.Open(at, info)
	if err != nil {
		return at, nil, nil, err
	}
	defer func() { _ = f.Close() }()
	text, err = io.ReadAll(io.LimitReader(f, toolReadMax+1))
	switch {
	case err != nil:
		err = doze.Wrap(err, doze.Unprocessable, "%v", err)
	case len(text) > toolReadMax:
		err = doze.Errorf(doze.Unprocessable, "%s has more than %d MiB; use a command to work on it", at.Shown, toolReadMax>>20)
	}
	return at, info, text, err
}

func (b *Set) toolRead(_ context.Context, in located) (out toolFile, err error) {
	at, info, text, err := b.content(in.Path)
	if err != nil {
		return out, err
	}
	out = toolFile{file.NewNames().Describe(at.Shown, path.Base(at.Abs), info), string(bytes.ToValidUTF8(text, []byte("\ufffd")))}
	out.LastModified = info.ModTime().UTC().Format(time.RFC3339)
	return out, nil
}

type toolWriteIn struct {
	Path        string  `json:"path" jsonschema:"absolute, or relative to the working directory"`
	Content     *string `json:"content,omitempty"`
	Permissions *string `json:"permissions,omitempty" jsonschema:"octal, such as 0644"`
	IsDirectory *bool   `json:"isDirectory,omitempty" jsonschema:"create a directory"`
}

func (b *Set) toolWrite(_ context.Context, in toolWriteIn) (out route.Success, err error) {
	at, err := b.places.Find(in.Path)
	if err != nil {
		return out, err
	}
	w := file.Write{Content: value(in.Content), IsDirectory: value(in.IsDirectory), Permissions: value(in.Permissions)}
	if _, err := owner.ParseMode(w.Permissions, 0); err != nil {
		w.Permissions = "" // models make some up; the usual ones do
	}
	var p doze.Problems
	perm := w.Mode(w.Content != "", &p)
	if err := p.Err(); err != nil {
		return route.Success{}, err
	}
	return file.Make(b.files.Owner(), at, w, perm)
}

type toolEditIn struct {
	Path       string `json:"path" jsonschema:"absolute, or relative to the working directory"`
	OldString  string `json:"oldString" jsonschema:"what is there, exactly"`
	NewString  string `json:"newString" jsonschema:"what is to be there"`
	ReplaceAll *bool  `json:"replaceAll,omitempty" jsonschema:"replace every occurrence"`
}

type toolEditOut struct {
	Path                string `json:"path"`
	OccurrencesReplaced int    `json:"occurrencesReplaced"`
}

func (b *Set) toolEdit(_ context.Context, in toolEditIn) (out toolEditOut, err error) {
	switch in.OldString {
	case "":
		return out, doze.Errorf(doze.Invalid, "oldString is empty; use fsWriteFile to write a file whole")
	case in.NewString:
		return out, doze.Errorf(doze.Invalid, "oldString and newString are the same; nothing would change")
	}
	at, _, text, err := b.content(in.Path)
	if err != nil {
		return out, err
	}
	n := bytes.Count(text, []byte(in.OldString))
	switch {
	case n == 0:
		return out, doze.Errorf(doze.Unprocessable, "oldString is not in %s; read the file again", at.Shown)
	case n > 1 && !value(in.ReplaceAll):
		return out, doze.Errorf(doze.Unprocessable, "oldString is %d times in %s; add lines around it or set replaceAll", n, at.Shown)
	}
	edited := bytes.ReplaceAll(text, []byte(in.OldString), []byte(in.NewString))
	return toolEditOut{at.Shown, n}, b.files.Owner().Write(at, owner.Always(owner.FileMode), bytes.NewReader(edited))
}

type toolDeleteIn struct {
	Path        string `json:"path" jsonschema:"absolute, or relative to the working directory"`
	IsDirectory *bool  `json:"isDirectory,omitempty" jsonschema:"found out by itself"`
	Recursive   *bool  `json:"recursive,omitempty" jsonschema:"delete what is in a directory, too"`
}

func (b *Set) toolDelete(ctx context.Context, in toolDeleteIn) (out route.Success, err error) {
	at, err := b.places.Find(in.Path)
	if err != nil {
		return out, err
	}
	out, err = b.files.Remove(ctx, at, value(in.Recursive))
	if errors.Is(err, syscall.ENOTEMPTY) {
		err = doze.Errorf(doze.Unprocessable, "%s is not empty; set recursive", at.Shown)
	}
	return out, err
}

type toolRangeIn struct {
	TargetFile string `json:"targetFile" jsonschema:"absolute, or relative to the working directory"`
	Start      int    `json:"startLineOneIndexed" jsonschema:"first line"`
	End        int    `json:"endLineOneIndexedInclusive" jsonschema:"last line"`
}

type toolRangeOut struct {
	Success bool   `json:"success"`
	Content string `json:"content"`
	File    string `json:"file"`
}

func (b *Set) toolReadRange(_ context.Context, in toolRangeIn) (out toolRangeOut, err error) {
	if in.Start < 1 || in.End < in.Start {
		return out, doze.Errorf(doze.Invalid, "lines count from 1, and the last must not come before the first")
	}
	_, _, text, err := b.content(in.TargetFile)
	if err != nil {
		return out, err
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(bytes.ToValidUTF8(text, []byte("\ufffd"))), "\n"), "\n")
	if in.Start > len(lines) {
		return out, doze.Errorf(doze.Invalid, "%s has %d lines", in.TargetFile, len(lines))
	}
	part := strings.Join(lines[in.Start-1:min(in.End, len(lines))], "")
	return toolRangeOut{true, strings.TrimSuffix(part, "\n"), in.TargetFile}, nil
}
