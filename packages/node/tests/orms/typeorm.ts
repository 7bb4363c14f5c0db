import { DataSource, type EntityManager } from "typeorm";

import type { Library } from "../libraries/library.js";

export async function connect(): Promise<Library> {
  const source = new DataSource({ type: "postgres", poolSize: 2 });
  await source.initialize();
  return {
    name: "TypeORM",
    pools: [source, source.manager],
    execute: (executor, text) => (executor as EntityManager).query(text),
    transaction: (work) => source.transaction((manager) => work(manager)),
    close: () => source.destroy(),
  };
}
