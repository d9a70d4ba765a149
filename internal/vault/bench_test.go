package vault_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/dozehq/doze/internal/vault"
)

// BenchmarkSaveLoad saves and loads a file, and writes and reads the same bytes as one
// plain object for each MiB, as many at a time, in turn. Of each MiB, a quarter does not
// compress, or all of it. It tells how fast each is, the ratios of a save to a write and of a
// load to a read, and what share of the chunks is not sent again after 1 % changed.
func BenchmarkSaveLoad(b *testing.B) {
	for server, serve := range servers {
		for name, random := range map[string]int{"quarter": mib / 4, "random": mib} {
			b.Run(server+"/"+name, func(b *testing.B) { saveLoad(b, serve(b), random) })
		}
	}
}

// saveLoad is a row of the benchmark. The first bytes of each MiB are random.
func saveLoad(b *testing.B, p *place, random int) {
	b.Helper()
	const size = 128 // MiB
	dir := b.TempDir()
	file := filepath.Join(dir, "pages.img")
	raw := make([]byte, size*mib)
	source := rand.NewChaCha8([32]byte{1})
	for part := range slices.Chunk(raw, mib) {
		_, _ = source.Read(part[:random])
		for i := random; i < mib; i++ {
			part[i] = byte(i >> 16)
		}
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		b.Fatal(err)
	}
	v := p.open(b, false, vault.Options{})
	client := p.client(b, p.direct)
	var saves, loads, puts, gets time.Duration
	took := func(sum *time.Duration, what func()) {
		begun := time.Now()
		what()
		*sum += time.Since(begun)
	}
	skipped := 0.0
	b.SetBytes(2 * size * mib)
	b.ResetTimer()
	for n := range b.N {
		id := fmt.Sprint("a", n)
		tree, err := vault.Tree(dir)
		if err != nil {
			b.Fatal(err)
		}
		took(&saves, func() { save(b, v, id, gen(1, 1), tree) })
		took(&puts, func() {
			plain(b, size, func(ctx context.Context, i int) error {
				_, err := client.PutObject(ctx, p.bucket, fmt.Sprint("plain/", i), bytes.NewReader(raw[i*mib:][:mib]), mib, minio.PutObjectOptions{DisableMultipart: true})
				return err
			})
		})
		loaded := filepath.Join(b.TempDir(), "loaded")
		took(&loads, func() {
			if _, err := v.Load(b.Context(), id, keyOf(b, id), loaded); err != nil {
				b.Fatal(err)
			}
		})
		got, err := os.Create(filepath.Join(b.TempDir(), "plain"))
		if err != nil {
			b.Fatal(err)
		}
		took(&gets, func() {
			plain(b, size, func(ctx context.Context, i int) error {
				o, err := client.GetObject(ctx, p.bucket, fmt.Sprint("plain/", i), minio.GetObjectOptions{})
				if err != nil {
					return err
				}
				_, err = io.Copy(io.NewOffsetWriter(got, int64(i)*mib), o)
				return errors.Join(err, o.Close())
			})
			if err := errors.Join(got.Sync(), got.Close()); err != nil {
				b.Fatal(err)
			}
		})
		same(b, dir, loaded)
		changed := bytes.Clone(raw)
		for i := range (size + 99) / 100 {
			changed[i*100*mib] ^= 1
		}
		other := b.TempDir()
		if err := os.WriteFile(filepath.Join(other, "pages.img"), changed, 0o600); err != nil {
			b.Fatal(err)
		}
		if tree, err = vault.Tree(other); err != nil {
			b.Fatal(err)
		}
		again := save(b, v, id, gen(1, 2), tree)
		skipped = 1 - float64(again.Sent)/float64(again.Chunks)
		b.StopTimer()
		if err := v.Drop(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	rate := func(d time.Duration) float64 { return float64(b.N) * size / d.Seconds() }
	b.ReportMetric(rate(saves), "save-MiB/s")
	b.ReportMetric(rate(puts), "put-MiB/s")
	b.ReportMetric(rate(loads), "load-MiB/s")
	b.ReportMetric(rate(gets), "get-MiB/s")
	b.ReportMetric(rate(saves)/rate(puts), "save/put")
	b.ReportMetric(rate(loads)/rate(gets), "load/get")
	b.ReportMetric(100*skipped, "%-not-sent")
}

// plain does something for each of count objects, as many at a time as a vault does.
func plain(b *testing.B, count int, do func(context.Context, int) error) {
	b.Helper()
	var group sync.WaitGroup
	next := make(chan int)
	for range vault.ParallelDefault {
		group.Go(func() {
			for i := range next {
				if err := do(b.Context(), i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	group.Wait()
}
