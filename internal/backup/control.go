package backup

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
)

// A backup of dozed control has its records and its keys. What sandboxes have is on nodes, and in
// the bucket. See docs/design/0149.

// ofControl are the files and directories that dozed control has besides its records.
func ofControl() []string {
	keys := slices.DeleteFunc(instance.Keys(), func(name string) bool { return name == instance.NodeFile || name == instance.FleetDir })
	return append(keys, "builds", instance.HistoryDir)
}

// writeControl writes all of an archive of dozed control.
func (j *job) writeControl(ctx context.Context, w io.Writer) (err error) {
	j.archive, err = NewWriter(w, Manifest{Format: FormatControl, Version: j.Version, Made: j.began.UTC(), Data: j.settings.Data, Images: j.settings.ImagesDir})
	if err != nil {
		return err
	}
	if err := j.configuration(ctx); err != nil {
		return err
	}
	for _, name := range ofControl() {
		if err := j.archive.Tree(ctx, path.Join(dataName, name), filepath.Join(j.settings.Data, name), nil); err != nil {
			return err
		}
	}
	if err := j.certificates(ctx); err != nil {
		return err
	}
	j.say("saved keys and certificates")
	file := filepath.Join(j.stage, recordsName)
	if _, err := j.records(ctx, file); err != nil {
		return err
	}
	if err := j.archive.File(ctx, recordsName, file); err != nil {
		return err
	}
	j.say("saved the records. What sandboxes have is on the nodes and in the bucket, and not in this backup")
	return j.archive.Close(nil)
}

// certificates writes the certificates of the roles. A file of them may be a link, as each is that
// Kubernetes mounts.
func (j *job) certificates(ctx context.Context) error {
	dir, to := j.settings.FleetKeys, path.Join(dataName, instance.FleetDir)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return fmt.Errorf("there are no certificates in %s: --fleet-keys says where they are: %w", dir, cmp.Or(err, fs.ErrNotExist))
	}
	if err := j.archive.begin(&tar.Header{Typeflag: tar.TypeDir, Name: to, Mode: 0o700}); err != nil {
		return err
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		if is, err := os.Stat(file); err != nil || !is.Mode().IsRegular() {
			continue // what Kubernetes links to is in a directory beside
		}
		if err := j.archive.File(ctx, path.Join(to, e.Name()), file); err != nil {
			return err
		}
	}
	return nil
}

// mark has the records in the stage say that they were restored.
func (p placing) mark(ctx context.Context) error {
	key := instance.SealFile(filepath.Join(p.stage, dataName))
	if _, err := os.Lstat(key); err != nil {
		return damaged("it has no %s", filepath.Base(key))
	}
	cipher, err := seal.Open(key)
	if err != nil {
		return err
	}
	file := filepath.Join(p.stage, recordsName)
	records, err := store.Open(ctx, file, cipher)
	if err != nil {
		return err
	}
	if err := errors.Join(records.MarkRestored(ctx, time.Now()), records.Close()); err != nil {
		return err
	}
	if _, err := os.Lstat(file + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the records in %s are not in one file", file)
	}
	return nil
}

// mark says that the records of a control that is stopped were restored by other means.
func (r *Restore) mark(ctx context.Context, s settings.Settings) error {
	if r.From != "" {
		return doze.Errorf(doze.Invalid, "--mark is for records that PostgreSQL restored: leave out --from")
	}
	if err := instance.MarkRestored(ctx, s); err != nil {
		return err
	}
	r.say("the records count as older than the nodes: nodes keep what these do not know, until doze node settle. Next: start dozed control")
	return nil
}
