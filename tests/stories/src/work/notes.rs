//! The notes of the workers in the database. Each note is written in a separate transaction.

use anyhow::Result;
use deadpool_postgres::Pool;
use tokio_postgres::Client;

/// Creates the table.
pub async fn make_table(client: &Client) -> Result<()> {
    let sql = "CREATE TABLE note (
                   seq     bigserial   PRIMARY KEY,
                   at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
                   message text        NOT NULL,
                   text    text        NOT NULL
               )";
    Ok(client.batch_execute(sql).await?)
}

/// Writes a note about a message.
pub async fn take(pool: &Pool, message: &str, text: &str) -> Result<()> {
    let client = pool.get().await?;
    let sql = "INSERT INTO note (message, text) VALUES ($1, $2)";
    client.execute(sql, &[&message, &text]).await?;
    Ok(())
}

/// Returns the notes about a message, in order.
pub async fn read(client: &Client, message: &str) -> Result<Vec<String>> {
    let sql = "SELECT text FROM note WHERE message = $1 ORDER BY seq";
    let rows = client.query(sql, &[&message]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Returns the time of a note about a message, in seconds after `moment`, which is a timestamp of
/// the server. Returns `None` when there is no such note.
pub async fn seconds_after(
    client: &Client,
    moment: &str,
    message: &str,
    text: &str,
) -> Result<Option<f64>> {
    let sql = "SELECT extract(epoch FROM at - $1::text::timestamptz)::float8
                 FROM note WHERE message = $2 AND text = $3";
    let row = client.query_opt(sql, &[&moment, &message, &text]).await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
}
