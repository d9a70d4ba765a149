package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"
)

// File is the record of one upload of a file into the bucket.
type File struct {
	Object string // its name in the bucket
	Label  string // of the file; empty: no copy may rely on the upload from now on, or an earlier release made it
	// Idle says since when nothing needs the upload, by the clock of control, and BucketIdle by that of
	// the bucket. While something may need it, both are zero.
	Idle, BucketIdle time.Time
	Dropped          bool // it is being removed
}

const (
	// filesBatch is how many files one transaction marks.
	filesBatch = 500
	// markTries is how often FileMark begins again because another call changed what it read.
	markTries = 10
)

// FileMark returns the mark of the upload that copies of a file may rely on, and has something need it
// again. If there is none, it is the one that next returns, whose object is new.
func (s *Store) FileMark(ctx context.Context, label string, next func() (object, mark string)) (string, error) {
	mark, err := s.fileMark(ctx, label, next)
	return mark, wrap(err, "look up a file of the bucket")
}

func (s *Store) fileMark(ctx context.Context, label string, next func() (object, mark string)) (string, error) {
	type upload struct {
		object, mark string
		idle         int64
	}
	for range markTries {
		all, err := collect(ctx, s.read, func(r row) (u upload, err error) { return u, r.Scan(&u.object, &u.mark, &u.idle) },
			`SELECT object, mark, idle_at FROM bucket_files WHERE label = $1`, label)
		switch {
		case err != nil:
			return "", err
		case len(all) > 0 && all[0].idle == 0:
			return all[0].mark, nil
		}
		var done sql.Result
		var mark string
		if len(all) > 0 { // a drop that is first takes the label away
			mark = all[0].mark
			done, err = s.write.ExecContext(ctx, `UPDATE bucket_files SET idle_at = 0, bucket_at = 0 WHERE object = $1 AND label = $2`, all[0].object, label)
		} else {
			var object string
			object, mark = next()
			done, err = s.write.ExecContext(ctx, `INSERT INTO bucket_files (object, label, mark) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, object, label, mark)
		}
		if err != nil {
			return "", err
		}
		if n, err := done.RowsAffected(); n > 0 || err != nil {
			return mark, err
		}
	}
	return "", errors.New("others change its record all the time")
}

// Files returns all files on record.
func (s *Store) Files(ctx context.Context) ([]File, error) {
	all, err := collect(ctx, s.read, scanFile, `SELECT object, label, idle_at, bucket_at, dropped FROM bucket_files ORDER BY object`)
	return all, wrap(err, "list files of the bucket")
}

func scanFile(r row) (f File, err error) {
	var idle, bucket, dropped int64
	err = r.Scan(&f.Object, &f.Label, &idle, &bucket, &dropped)
	if idle != 0 {
		f.Idle, f.BucketIdle = time.Unix(0, idle), time.Unix(0, bucket)
	}
	f.Dropped = dropped != 0
	return f, err
}

// SetFilesIdle takes note that nothing needs some files, unless that is on record. One without a record
// gets one.
func (s *Store) SetFilesIdle(ctx context.Context, objects []string, at, bucketAt time.Time) error {
	return s.eachFile(ctx, objects, `INSERT INTO bucket_files (object, idle_at, bucket_at) VALUES ($1, $2, $3)
		ON CONFLICT (object) DO UPDATE SET idle_at = excluded.idle_at, bucket_at = excluded.bucket_at WHERE bucket_files.idle_at = 0`, at.UnixNano(), bucketAt.UnixNano())
}

// SetFilesNeeded takes note that something needs some files. One that is being removed stays so.
func (s *Store) SetFilesNeeded(ctx context.Context, objects []string) error {
	return s.eachFile(ctx, objects, `UPDATE bucket_files SET idle_at = 0, bucket_at = 0 WHERE object = $1 AND dropped = 0`)
}

// eachFile executes a statement for each of some files.
func (s *Store) eachFile(ctx context.Context, objects []string, statement string, args ...any) error {
	for some := range slices.Chunk(objects, filesBatch) {
		err := s.update(ctx, func(tx *sql.Tx) error {
			for _, object := range some {
				if _, err := tx.ExecContext(ctx, statement, append([]any{object}, args...)...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("mark files of the bucket: %w", err)
		}
	}
	return nil
}

// DropFile takes note that a file is to be removed, if its record still has the same Idle. The next copy
// that needs it makes another upload.
func (s *Store) DropFile(ctx context.Context, f File) (bool, error) {
	var idle int64
	if !f.Idle.IsZero() {
		idle = f.Idle.UnixNano()
	}
	res, err := s.write.ExecContext(ctx, `UPDATE bucket_files SET dropped = 1, label = '' WHERE object = $1 AND idle_at = $2 AND dropped = 0`, f.Object, idle)
	if err != nil {
		return false, wrap(err, "drop a file of the bucket")
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// ForgetFile removes the record of a file that was removed.
func (s *Store) ForgetFile(ctx context.Context, object string) error {
	_, err := s.write.ExecContext(ctx, `DELETE FROM bucket_files WHERE object = $1 AND dropped = 1`, object)
	return wrap(err, "forget a file of the bucket")
}
