import { createServer } from "node:http";

const port = Number(process.env.PORT ?? 3000);

createServer((request, response) => {
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify({ message: "Hello from TypeScript", path: request.url }));
}).listen(port, "0.0.0.0", () => {
  console.log(`listening on port ${port}`);
});
