export default function Home() {
  return (
    <main className="mx-auto max-w-2xl p-16">
      <h1 className="text-3xl font-semibold">Your Next.js app runs</h1>
      <p className="mt-4">
        Edit <code>/blaxel/app/app/page.tsx</code>, and this page follows.
      </p>
    </main>
  );
}
