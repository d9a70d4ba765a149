package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/dozehq/doze"
)

const (
	partsMax = 10_000 // as many as storages take
	// answerMax is what is read of an answer of the storage.
	answerMax = 64 << 10
)

// Target is where a pack goes: to one address, or in parts.
type Target struct {
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"` // of uploads, as they were signed
	Parts   *Parts            `json:"multipart"`
}

// Parts is an upload in parts that somebody has begun.
type Parts struct {
	Size        int64    `json:"partSize"` // bytes of all but the last
	URLs        []string `json:"partUrls"`
	CompleteURL string   `json:"completeUrl"`
	AbortURL    string   `json:"abortUrl"`
}

// Check adds why no pack can be sent there. It never repeats an address, since the
// address alone gives the right to write there.
func (t Target) Check(p *doze.Problems) {
	if t.Parts == nil {
		doze.CheckAddress(p, "url", t.URL)
		return
	}
	if t.Parts.Size < 1 {
		p.Add("multipart.partSize", "must be at least 1, in bytes")
	}
	if n := len(t.Parts.URLs); n == 0 || n > partsMax {
		p.Add("multipart.partUrls", "has %d addresses; it must have 1 to %d", n, partsMax)
	}
	for i, address := range t.Parts.URLs {
		known := len(*p)
		if doze.CheckAddress(p, fmt.Sprintf("multipart.partUrls[%d]", i), address); len(*p) > known {
			break // the others are like it
		}
	}
	doze.CheckAddress(p, "multipart.completeUrl", t.Parts.CompleteURL)
	if t.Parts.AbortURL != "" {
		doze.CheckAddress(p, "multipart.abortUrl", t.Parts.AbortURL)
	}
}

// Send uploads a pack. It follows no redirect. Errors are Internal and never
// repeat an address.
func (t Target) Send(ctx context.Context, client *http.Client, p *Pack) (err error) {
	if t.Parts != nil && (p.Size+t.Parts.Size-1)/t.Parts.Size > int64(len(t.Parts.URLs)) {
		return doze.Errorf(doze.Internal, "the archive has %d bytes, which is more than the partUrls hold", p.Size)
	}
	content, end := io.Pipe()
	packed := make(chan error, 1)
	go func() { // ends with the reader, drained below
		err := p.Write(ctx, end)
		_ = end.CloseWithError(err) // it never fails
		packed <- err
	}()
	if t.Parts == nil {
		_, err = put(ctx, client, t.URL, t.Headers, content, p.Size)
	} else {
		err = t.sendParts(ctx, client, content, p.Size)
	}
	_ = content.Close() // it never fails
	if e := <-packed; err == nil && e != nil && !errors.Is(e, io.ErrClosedPipe) {
		err = e
	}
	return err
}

// sendParts uploads one part after the other and puts them together.
func (t Target) sendParts(ctx context.Context, client *http.Client, content io.Reader, size int64) (err error) {
	defer func() {
		if err != nil && t.Parts.AbortURL != "" {
			// It outlives its call: the storage would keep the parts.
			_, _ = exchange(context.WithoutCancel(ctx), client, http.MethodDelete, t.Parts.AbortURL, nil, nil, 0)
		}
	}()
	var list strings.Builder
	list.WriteString("<CompleteMultipartUpload>")
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	for i := 0; size > 0; i++ {
		n := min(size, t.Parts.Size)
		tag, err := put(ctx, client, t.Parts.URLs[i], t.Headers, io.LimitReader(content, n), n)
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, escape.Replace(tag))
		size -= n
	}
	list.WriteString("</CompleteMultipartUpload>")
	body := []byte(list.String())
	resp, err := exchange(ctx, client, http.MethodPost, t.Parts.CompleteURL, nil, bytes.NewReader(body), int64(len(body)))
	if err == nil && strings.Contains(resp.body, "<Error>") { // storages say so with 200
		err = doze.Errorf(doze.Internal, "the storage could not put the parts together")
	}
	return err
}

// put uploads one body and returns its tag.
func put(ctx context.Context, client *http.Client, address string, headers map[string]string, body io.Reader, size int64) (tag string, err error) {
	resp, err := exchange(ctx, client, http.MethodPut, address, headers, body, size)
	return resp.tag, err
}

// reply is what a storage answered.
type reply struct{ tag, body string }

func exchange(ctx context.Context, client *http.Client, method, address string, headers map[string]string, body io.Reader, size int64) (r reply, err error) {
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return r, doze.Errorf(doze.Internal, "the address of the storage is not one")
	}
	req.ContentLength = size
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the address
		}
		return r, doze.Errorf(doze.Internal, "the storage cannot be reached or broke off: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, answerMax)) // what there is
	if resp.StatusCode/100 != 2 {
		return r, doze.Errorf(doze.Internal, "the storage answered %s", resp.Status)
	}
	return reply{resp.Header.Get("ETag"), string(b)}, nil
}
