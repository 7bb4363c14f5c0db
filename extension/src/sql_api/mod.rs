//! The functions that SQL calls. Each checks its arguments, calls a module and converts the result.
//! They are declared in `sql/api`, and those for the extension's own SQL in
//! `sql/internal/functions.sql`.

/// Defines two functions, for the overloads of an SQL function with a text id and with a uuid. In
/// the body the id is a `MessageId`.
macro_rules! overloads {
    (
        fn $text:ident | $uuid:ident($id:ident $(, $($argument:tt)+)?) -> $result:ty $body:block
    ) => {
        #[pgrx::pg_extern(sql = false)]
        #[allow(clippy::too_many_arguments)]
        fn $text($id: Option<&str> $(, $($argument)+)?) -> $result {
            let $id = $crate::sql_api::text_id($id)?;
            $body
        }

        #[pgrx::pg_extern(sql = false)]
        #[allow(clippy::too_many_arguments)]
        fn $uuid($id: Option<pgrx::Uuid> $(, $($argument)+)?) -> $result {
            let $id = $crate::sql_api::uuid_id($id)?;
            $body
        }
    };
}

mod claim;
mod commit;
mod effects;
mod expanded;
mod inbox;
mod internal;
mod journal;
mod leases;
mod maintenance;
mod relays;

use crate::errors::{Result, given};
use idem_core::MessageId;
use pgrx::Uuid;
use pgrx::pg_sys::panic::ErrorReport;

/// The result of a function that SQL calls.
type Report<T> = std::result::Result<T, ErrorReport>;

fn text_id(id: Option<&str>) -> Result<MessageId<'_>> {
    Ok(MessageId::from_text(given(id, "id")?)?)
}

fn uuid_id(id: Option<Uuid>) -> Result<MessageId<'static>> {
    Ok(MessageId::from_uuid(*given(id, "id")?.as_bytes()))
}

/// Converts message ids to the type of SQL.
fn uuids(ids: Vec<uuid::Uuid>) -> Vec<Uuid> {
    ids.into_iter()
        .map(|id| Uuid::from_bytes(id.into_bytes()))
        .collect()
}
