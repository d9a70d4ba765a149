package vault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
)

const (
	// requestTime is what a request may take, besides its bytes.
	requestTime = 15 * time.Second
	// removeTime is what a request may take that removes many objects.
	removeTime = time.Minute
	// slowest is what a bucket must take or give, in bytes per second.
	slowest = 64 << 10
	// tries is how often a request is sent that fails for a reason that may pass. With
	// the waits between them that is about a quarter of a minute.
	tries               = 8
	waitFirst, waitMost = 100 * time.Millisecond, 5 * time.Second
	// removeMost is how many keys S3 takes in one request to remove them.
	removeMost = 1000
)

// Errors of objects.
var (
	errExists = errors.New("the object is there already")
	errAbsent = errors.New("there is no such object")
)

// timeFor is what a request of size bytes may take.
func timeFor(size int64) time.Duration {
	return requestTime + time.Duration(size/slowest)*time.Second
}

// try makes a request until it works, fails for good, or ctx ends. It waits longer each
// time.
func try(ctx context.Context, what, key string, request func() error) error {
	wait := waitFirst
	for n := 1; ; n++ {
		err := request()
		switch {
		case err == nil || errors.Is(err, errExists) || errors.Is(err, errAbsent):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %s %s: %w: %w", ErrAway, what, key, context.Cause(ctx), err)
		case !passes(err):
			return fmt.Errorf("%s %s: %w", what, key, err)
		case n == tries:
			return fmt.Errorf("%w: %s %s: after %d tries: %w", ErrAway, what, key, n, err)
		}
		timer := time.NewTimer(wait/2 + rand.N(wait)) //nolint:gosec // G404: it spreads requests, and is no secret
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %s %s: %w: %w", ErrAway, what, key, context.Cause(ctx), err)
		case <-timer.C:
		}
		wait = min(2*wait, waitMost)
	}
}

// passes reports whether the reason of an error may be gone later.
func passes(err error) bool {
	answer, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok || answer.StatusCode == 0 {
		return true // there was no answer, or half of one
	}
	switch answer.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusConflict: // another conditional write is under way
		return answer.Code == "ConditionalRequestConflict" || answer.Code == "OperationAborted"
	}
	return answer.StatusCode >= http.StatusInternalServerError && answer.StatusCode != http.StatusNotImplemented
}

// answerOf turns what S3 says of one object into errors of objects.
func answerOf(err error) error {
	if answer, ok := errors.AsType[minio.ErrorResponse](err); ok {
		switch {
		case answer.StatusCode == http.StatusPreconditionFailed || answer.Code == minio.PreconditionFailed:
			return errExists
		case answer.Code == minio.NoSuchKey || answer.StatusCode == http.StatusNotFound && answer.Code != minio.NoSuchBucket:
			return errAbsent
		}
	}
	return err
}

// put writes an object. With once, it writes none where one is: errExists. That may be one
// of its own, from a try whose answer was lost.
func (v *Vault) put(ctx context.Context, key string, raw []byte, once bool) error {
	o := minio.PutObjectOptions{
		ContentType:      "application/octet-stream",
		DisableMultipart: true,
		// The client would send a signature of no chunks without saying how long
		// that is, which servers refuse.
		DisableContentSha256: len(raw) == 0,
	}
	if once {
		o.SetMatchETagExcept("*")
	}
	return try(ctx, "write", key, func() error {
		if v.sends != nil {
			for left := len(raw); left > 0; left -= v.sends.Burst() {
				if err := v.sends.WaitN(ctx, min(left, v.sends.Burst())); err != nil {
					return err
				}
			}
		}
		ctx, cancel := context.WithTimeout(ctx, timeFor(int64(len(raw))))
		defer cancel()
		_, err := v.core.Client.PutObject(ctx, v.bucket, key, bytes.NewReader(raw), int64(len(raw)), o)
		return answerOf(err)
	})
}

// get returns an object, which may have up to most bytes.
func (v *Vault) get(ctx context.Context, key string, most int64) ([]byte, error) {
	return v.getInto(ctx, key, most, nil)
}

// getInto is get into memory that is there, if that is large enough.
func (v *Vault) getInto(ctx context.Context, key string, most int64, memory []byte) (raw []byte, err error) {
	err = try(ctx, "read", key, func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		timer := time.AfterFunc(requestTime, cancel)
		defer timer.Stop()
		body, info, _, err := v.core.GetObject(ctx, v.bucket, key, minio.GetObjectOptions{})
		if err != nil {
			return answerOf(err)
		}
		defer func() { _ = body.Close() }()
		switch {
		case info.Size < 0:
			return errors.New("the answer has no length")
		case info.Size > most:
			raw = nil
			return nil
		}
		timer.Reset(timeFor(info.Size))
		if raw = memory[:0]; raw == nil || int64(cap(raw)) < info.Size {
			raw = make([]byte, info.Size)
		}
		raw = raw[:info.Size]
		_, err = io.ReadFull(body, raw)
		return err
	})
	if err == nil && raw == nil {
		err = fmt.Errorf("%w: %s has more than %d bytes", ErrDamaged, key, most)
	}
	return raw, err
}

// modified returns when an object was written, by the clock of the bucket; the zero time if
// there is none. A list says it more precisely than the object.
func (v *Vault) modified(ctx context.Context, key string) (at time.Time, err error) {
	err = v.listAll(ctx, key, func(o object) error {
		if o.rest == "" {
			at = o.modified
		}
		return nil
	})
	return at, err
}

// An object is one of a list.
type object struct {
	key      string
	rest     string // the key without what was listed
	modified time.Time
	size     int64
}

// list calls found for each object of a kind, in order. It sees all that were written
// before it began.
func (v *Vault) list(ctx context.Context, id, kind, prefix string, found func(object) error) error {
	return v.listAll(ctx, v.key(id, kind, prefix), found)
}

// listAll calls found for each object whose key begins with a prefix, in order. A list that
// is cut goes on behind the last object.
func (v *Vault) listAll(ctx context.Context, prefix string, found func(object) error) error {
	last, wrong := "", error(nil)
	for {
		some := false // this try got on
		err := try(ctx, "list", prefix, func() error {
			for o, err := range v.page(ctx, prefix, last, true) {
				if err != nil {
					if some {
						return nil // the next round goes on, with all its tries
					}
					return err
				}
				some, last = true, o.Key
				if wrong = found(object{o.Key, o.Key[len(prefix):], o.LastModified, o.Size}); wrong != nil {
					return nil
				}
			}
			some = false // that was all
			return nil
		})
		if err != nil || wrong != nil || !some {
			return errors.Join(err, wrong)
		}
	}
}

// page yields objects behind a key until the last, or an error last. It is an error when
// none comes for the time of a request.
func (v *Vault) page(ctx context.Context, prefix, after string, deep bool) iter.Seq2[minio.ObjectInfo, error] {
	return func(yield func(minio.ObjectInfo, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		timer := time.AfterFunc(requestTime, cancel)
		defer timer.Stop()
		for o := range v.core.ListObjectsIter(ctx, v.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: deep, StartAfter: after}) {
			if o.Err == nil && len(o.Key) < len(prefix) {
				o.Err = fmt.Errorf("the list has %q, which does not begin with %q", o.Key, prefix)
			}
			if !yield(o, o.Err) || o.Err != nil {
				return
			}
			timer.Reset(requestTime)
		}
		if ctx.Err() != nil { // the client ends the list then, as if that were all
			yield(minio.ObjectInfo{}, ctx.Err())
		}
	}
}

// remove removes objects. One that is not there is no error.
func (v *Vault) remove(ctx context.Context, keys []string) error {
	for len(keys) > 0 {
		some := keys[:min(removeMost, len(keys))]
		keys = keys[len(some):]
		err := try(ctx, "remove", some[0], func() error {
			ctx, cancel := context.WithTimeout(ctx, removeTime)
			defer cancel()
			results, err := v.core.RemoveObjectsWithIter(ctx, v.bucket, func(yield func(minio.ObjectInfo) bool) {
				for _, key := range some {
					if !yield(minio.ObjectInfo{Key: key}) {
						return
					}
				}
			}, minio.RemoveObjectsOptions{})
			if err != nil {
				return err
			}
			for r := range results {
				if r.Err != nil && err == nil {
					err = r.Err
				}
			}
			if err == nil {
				err = ctx.Err() // the client tells nobody that it did nothing
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
