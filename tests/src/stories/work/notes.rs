//! What the workers write down beside their work, each note committed by itself.

use anyhow::Result;
use deadpool_postgres::Pool;
use tokio_postgres::Client;

/// Makes the table.
pub async fn make_table(client: &Client) -> Result<()> {
    let sql = "CREATE TABLE note (
                   seq     bigserial   PRIMARY KEY,
                   at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
                   message text        NOT NULL,
                   text    text        NOT NULL
               )";
    Ok(client.batch_execute(sql).await?)
}

/// Takes a note of a message.
pub async fn take(pool: &Pool, message: &str, text: &str) -> Result<()> {
    let client = pool.get().await?;
    let sql = "INSERT INTO note (message, text) VALUES ($1, $2)";
    client.execute(sql, &[&message, &text]).await?;
    Ok(())
}

/// The notes of a message, in their order.
pub async fn read(client: &Client, message: &str) -> Result<Vec<String>> {
    let sql = "SELECT text FROM note WHERE message = $1 ORDER BY seq";
    let rows = client.query(sql, &[&message]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// When, after a moment of the server's, a note of a message was taken; none when there is no such
/// note. In seconds.
pub async fn seconds_after(
    client: &Client,
    moment: &str,
    message: &str,
    text: &str,
) -> Result<Option<f64>> {
    let sql = "SELECT extract(epoch FROM at - $1::text::timestamptz)::float8 FROM note WHERE message = $2 AND text = $3";
    let row = client.query_opt(sql, &[&moment, &message, &text]).await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
}
