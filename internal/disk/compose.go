package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/dozehq/doze"
)

// An image that begins with the layers of another one is made of that one and of what is
// new. Nothing of the other is unpacked again where the host can mount images.

// longest finds the image that is made of the most layers of a chain, counted from the
// lowest one, and says how many these are. More than most do not count. Zero is none.
func (l *Library) longest(chain []string, most int, may func(record) bool) (under record, n int, err error) {
	records, _, err := read(l.imageDir()) // what is damaged was reported when it was found
	if err != nil {
		return under, 0, err
	}
	for _, r := range records {
		for _, has := range [][]string{r.Layers, {r.Export.Layer}} {
			if len(has) > n && len(has) <= most && slices.Equal(has, chain[:len(has)]) && may(r) {
				under, n = r, len(has)
			}
		}
	}
	if n == 0 {
		return under, 0, nil
	}
	held, err := l.hold(under.Image, true)
	if !held && err == nil {
		return record{}, 0, nil // it was removed just now
	}
	return under, n, err
}

// compose makes an image of the lowest n of its layers, which are those of another one,
// and of what fill puts over them. Preconditions: n is 0, or under has these layers.
func (l *Library) compose(ctx context.Context, made, under record, n int, fill func(*rootTree) error) (_ Image, err error) {
	work, err := l.workspace()
	if err != nil {
		return Image{}, err
	}
	defer func() { err = errors.Join(err, work.discard()) }()
	file := filepath.Join(work.dir, "image"+imageSuffix)
	if n > 0 && n == len(made.Layers) { // the files are the same: only words changed
		if err := os.Link(under.Path, file); err != nil {
			return Image{}, fmt.Errorf("use the files of %s: %w", under.Ref, err)
		}
		made.Bytes, made.Export = under.Bytes, under.Export
		return l.commit(file, made)
	}
	if made.Bytes, err = l.raise(ctx, work.dir, file, under, n > 0, fill); err != nil {
		return Image{}, err
	}
	return l.commit(file, made)
}

// raise makes the file of an image of what fill puts into a tree. Over another image, the
// tree is that one, mounted, where the host can do so; otherwise it is copied first.
func (l *Library) raise(ctx context.Context, work, file string, under record, over bool, fill func(*rootTree) error) (size int64, err error) {
	sealed := func(dir string, begin func(*rootTree) error) error {
		bytes, err := l.plant(dir, begin, fill)
		if err != nil {
			return err
		}
		release, err := l.o.room()(bytes)
		if err != nil {
			return err
		}
		defer release()
		size, _, err = seal(ctx, dir, file, false)
		return err
	}
	begin := func(*rootTree) error { return nil }
	if over {
		base, err := openSealed(under.Path)
		if err != nil {
			return 0, damaged(under.Image, err)
		}
		defer func() { _ = base.close() }() // it was only read
		err = overlaid(ctx, work, under.Path, func(dir string) error {
			return sealed(dir, func(t *rootTree) error { return damaged(under.Image, t.rest(base, under.Bytes)) })
		})
		if !errors.Is(err, errNoOverlay) {
			return size, err
		}
		begin = func(t *rootTree) error { return damaged(under.Image, t.pour(ctx, base)) }
	}
	tree := filepath.Join(work, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil { //nolint:gosec // G301: this is the root directory of the image
		return 0, fmt.Errorf("make a root: %w", err)
	}
	err = sealed(tree, begin)
	return size, err
}

// plant opens a tree, has steps put something into it, and returns what the tree takes of
// the disk.
func (l *Library) plant(dir string, steps ...func(*rootTree) error) (bytes int64, err error) {
	t, err := openTree(dir, l.limits)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	t.room = l.o.room()
	for _, step := range steps {
		if err := step(t); err != nil {
			return 0, err
		}
	}
	return t.bytes(), nil
}

// rest takes into account that a tree has the files of an image already.
func (t *rootTree) rest(base *sealed, bytes int64) error {
	root, err := base.inode(base.root)
	if err != nil {
		return err
	}
	t.times["."] = root.time
	if t.left.bytes -= bytes; t.left.bytes < 0 {
		return t.tooLarge()
	}
	if t.left.files -= int(base.inodes); t.left.files < 0 {
		return doze.Errorf(doze.TooLarge, "the image has more than %d files, which is the limit", t.most.files)
	}
	return nil
}
