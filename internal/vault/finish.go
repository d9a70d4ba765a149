package vault

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Finish decides what became of saves of an epoch that ended without an answer. The manifest of
// one may still be on its way. The newest of them counts from now on, if the bucket has all that its
// manifest names. Of the others, none can count any more: nobody writes a manifest before the bucket
// has what that names. If a newer epoch was claimed, the error is ErrSuperseded.
//
// Nobody else may save or sweep the sandbox in this epoch meanwhile.
func (v *Vault) Finish(ctx context.Context, id string, key Key, epoch uint64) error {
	return v.FinishIf(ctx, id, key, epoch, nil)
}

// FinishIf is Finish of saves that were begun with [Vault.SaveIf]. may reports whether one of them would
// have been let count; nil: all were.
func (v *Vault) FinishIf(ctx context.Context, id string, key Key, epoch uint64, may func(context.Context, *Copy) (bool, error)) error {
	if err := errors.Join(checkID(id), checkEpoch(epoch)); err != nil {
		return err
	}
	sealer, err := newSealer(id, key)
	if err != nil {
		return err
	}
	claims, err := v.claimsUpTo(ctx, id, epoch)
	if err != nil || len(claims) == 0 || claims[len(claims)-1] < epoch { // nothing was saved in it
		return err
	}
	newest, err := v.standing(ctx, id, claims)
	if err != nil {
		return err
	}
	type begun struct {
		Generation
		key string
	}
	var all []begun
	err = v.list(ctx, id, kindPending, hexOf(epoch)+"-", func(o object) error {
		if g, ok := pendingOf(hexOf(epoch) + "-" + o.rest); ok && newest.Before(g) {
			all = append(all, begun{g, o.key})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b begun) int { return compare(b.Generation, a.Generation) })
	for _, b := range all {
		s := &save{v: v, id: id, g: b.Generation, sealer: sealer}
		done, err := s.finish(ctx, b.key, may)
		if done || err != nil {
			return err
		}
	}
	return nil
}

// finish makes a manifest count that was pending, if all that it names is there.
func (s *save) finish(ctx context.Context, pending string, may func(context.Context, *Copy) (bool, error)) (done bool, err error) {
	raw, err := s.v.get(ctx, pending, sealedManifestMost)
	if errors.Is(err, errAbsent) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	m, err := s.sealer.openManifest(raw, s.g)
	if err != nil {
		return false, fmt.Errorf("finish a save of %s: %w", s.id, err)
	}
	lost, err := s.lost(ctx, m)
	if err != nil || len(lost) > 0 {
		return false, err
	}
	if may != nil {
		if ok, err := may(ctx, &Copy{s.v, s.sealer, m}); !ok || err != nil {
			return false, err
		}
	}
	return true, s.publish(ctx, m)
}

// Last returns the highest generation of an epoch that was saved, or whose save has begun. It is
// the zero Generation if there is none.
func (v *Vault) Last(ctx context.Context, id string, epoch uint64) (last Generation, err error) {
	if err := errors.Join(checkID(id), checkEpoch(epoch)); err != nil {
		return last, err
	}
	prefix := hexOf(epoch) + "-"
	// What is pending is so until it is written, so it is in one of the two lists.
	for _, kind := range []string{kindPending, kindManifest} {
		err := v.list(ctx, id, kind, prefix, func(o object) error {
			if g, ok := pendingOf(prefix + o.rest); ok && last.Before(g) {
				last = g
			}
			return nil
		})
		if err != nil {
			return Generation{}, err
		}
	}
	return last, nil
}
