package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
)

const (
	// partSize is how many bytes of a file one request carries. With fewer, a
	// file goes in one.
	partSize = 8 << 20
	// partsMax is how many parts a sandbox takes: 78 GiB.
	partsMax = 10_000
	// partsAtOnce hides the way there and back, and bounds our memory.
	partsAtOnce = 3
	// abortTimeout bounds the attempt to remove the parts of an upload that did
	// not work. A sandbox removes them by itself after a day.
	abortTimeout = 5 * time.Second
)

// part is a part of a file that has arrived.
type part struct {
	Number int    `json:"partNumber"`
	ETag   string `json:"etag"`
}

// Upload is [Agent.WriteFile] for content of any size: what is large goes in
// parts, and the file is there when all of them are.
func (b *Agent) Upload(ctx context.Context, name string, content io.Reader, permissions string) (Done, error) {
	var first bytes.Buffer // most files are small
	_, err := io.CopyN(&first, content, partSize)
	if errors.Is(err, io.EOF) {
		return b.WriteFile(ctx, name, &first, permissions)
	}
	if err != nil {
		return Done{}, err
	}
	in := map[string]string{}
	if permissions != "" {
		in["permissions"] = permissions
	}
	begun, err := exchange[struct {
		ID string `json:"uploadId"`
	}](ctx, b.c, http.MethodPost, b.base+"/filesystem-multipart/initiate/"+filePath(name), in)
	if err != nil {
		return Done{}, err
	}
	at := b.base + "/filesystem-multipart/" + url.PathEscape(begun.ID)
	parts, err := b.parts(ctx, at, io.MultiReader(&first, content))
	if err == nil {
		var done Done
		if done, err = exchange[Done](ctx, b.c, http.MethodPost, at+"/complete", map[string]any{"parts": parts}); err == nil {
			return done, nil
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	_, _ = exchange[Done](ctx, b.c, http.MethodDelete, at+"/abort", nil) // what stays is removed later
	return Done{}, err
}

// parts sends all parts of a content.
func (b *Agent) parts(ctx context.Context, at string, content io.Reader) (arrived []part, err error) {
	var mu sync.Mutex // of arrived
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for number := 1; ctx.Err() == nil; number++ {
		buf := make([]byte, partSize)
		n, end := io.ReadFull(content, buf)
		if n > 0 && number > partsMax {
			err = doze.Errorf(doze.TooLarge, "the file has more than %d bytes, which is all that a sandbox takes", int64(partSize)*partsMax)
			break
		}
		if n > 0 {
			g.Go(func() error {
				p, err := b.sendPart(ctx, at, number, buf[:n])
				mu.Lock()
				defer mu.Unlock()
				arrived = append(arrived, p)
				return err
			})
		}
		if end != nil {
			if !errors.Is(end, io.EOF) && !errors.Is(end, io.ErrUnexpectedEOF) {
				err = end
			}
			break
		}
	}
	sent := g.Wait()
	slices.SortFunc(arrived, func(a, b part) int { return cmp.Compare(a.Number, b.Number) })
	return arrived, cmp.Or(err, sent)
}

func (b *Agent) sendPart(ctx context.Context, at string, number int, content []byte) (p part, err error) {
	kind, body := form("part", bytes.NewReader(content), "")
	resp, err := b.c.send(ctx, call{
		method: http.MethodPut, url: at + "/part?partNumber=" + strconv.Itoa(number), header: http.Header{"Content-Type": {kind}}, body: body,
	})
	if err != nil {
		return p, err
	}
	defer func() { _ = resp.Body.Close() }()
	return decode[part](ctx, resp)
}
