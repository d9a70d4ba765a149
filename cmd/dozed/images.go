package main

import (
	"context"
	"log/slog"
	"time"
)

// collectEvery is how often unused images are looked for. An image that was released
// while a sandbox may have been starting with it goes with the next look.
const collectEvery = 10 * time.Minute

// releaseImage has an image looked at of which a record is gone.
func (p *platform) releaseImage(ref string) {
	p.images.Release(ref)
	select {
	case p.unnamed <- struct{}{}:
	default: // somebody looks soon
	}
}

// collectImages removes images that nothing needs, until ctx ends.
func (p *platform) collectImages(ctx context.Context) error {
	every := time.NewTicker(collectEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		case <-p.unnamed:
		}
		if err := p.collectOnce(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "unused images are not removed", "err", err)
		}
	}
}

// collectOnce asks who needs images, the records after the sandboxes: what begins
// meanwhile holds its image by itself.
func (p *platform) collectOnce(ctx context.Context) error {
	used, err := p.node.ImageFiles()
	if err != nil {
		return err
	}
	named, err := p.store.ImageRefs(ctx)
	if err != nil {
		return err
	}
	gone, err := p.images.Collect(used, append(named, p.config.Images...), p.config.ImageKeep.Duration)
	for _, i := range gone {
		slog.InfoContext(ctx, "removed an unused image", "image", i.Ref, "digest", i.Digest, "bytes", i.Bytes)
		p.metrics.Collected(i.Bytes)
	}
	return err
}
