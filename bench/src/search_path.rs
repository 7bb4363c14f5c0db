//! The search path of a connection.

use tokio_postgres::{Client, Error};

/// Makes this schema the first one in the search path. The schemas that were in it before stay
/// visible, and so do the functions of idem.
///
/// # Errors
/// Returns the error of the server, or of the connection.
pub async fn put_first(client: &Client, schema: &str) -> Result<(), Error> {
    client
        .execute(
            "SELECT set_config('search_path', $1 || ', ' || current_setting('search_path'), false)",
            &[&schema],
        )
        .await
        .map(drop)
}
