// A list that follows its newest line.
import { useLayoutEffect, useRef } from "preact/hooks";
import type { RefObject } from "preact";

/** A list scrolls to its end when what it shows changes. A reader who scrolled up stays there. */
export function useTail(shown: unknown): { ref: RefObject<HTMLOListElement>; onScroll: () => void } {
  const ref = useRef<HTMLOListElement>(null);
  const end = useRef(true);
  useLayoutEffect(() => {
    if (ref.current && end.current) ref.current.scrollTop = ref.current.scrollHeight;
  }, [shown]);
  return {
    ref,
    onScroll: () => {
      const el = ref.current;
      if (el) end.current = el.scrollHeight - el.scrollTop - el.clientHeight < 30;
    },
  };
}
