// Where the memory of a sandbox is. This table is the only one about tiers.

export interface Tier {
  id: string;
  name: string;
  /** What it means, in one line. */
  about: string;
}

/** From awake to the deepest sleep: the order of the picture. */
export const tiers: readonly Tier[] = [
  { id: "awake", name: "Awake", about: "runs, or would at once" },
  { id: "paused", name: "Paused", about: "stands still, in memory" },
  { id: "saved", name: "Saved", about: "in memory, with a checkpoint on disk" },
  { id: "swapped", name: "Swapped", about: "its memory is in swap" },
  { id: "disk", name: "On disk", about: "its memory is on disk alone" },
];

export const tierName = (id: string): string => tiers.find((t) => t.id === id)?.name ?? "";
export const depth = (id: string): number => tiers.findIndex((t) => t.id === id);
/** The name of the colour of a tier, in the style sheet. */
export const tint = (id: string): string => `--tier-${id}`;
