//! The journal of external calls: each call to something outside of the database is recorded before
//! it is made and after it has returned.
//!
//! A call to a payment gateway, a carrier or a mail server cannot share a transaction with the
//! message. The journal gives other guarantees instead. A call with a recorded result is never made
//! again. Each attempt uses the same idempotency key. If the result of an earlier attempt is not
//! known, the next attempt is informed of this ([`OnUnknown`]).
//!
//! ```
//! # struct Gateway;
//! # impl Gateway {
//! #     async fn charge(&self, _: u32, _: String) -> Result<String, std::io::Error> {
//! #         Ok(String::new())
//! #     }
//! # }
//! use idem_client::Effect;
//! use idem_runtime::Consumer;
//!
//! # fn consumer<S: idem_runtime::Source>(
//! #     consumer: Consumer<S>, gateway: &'static Gateway,
//! # ) -> Consumer<S> {
//! consumer.handle_leased("billing.charge", move |work, message| async move {
//!     let cents: u32 = message.json()?;
//!     let receipt: String = work
//!         .calls()
//!         .once("charge", &cents, |key| gateway.charge(cents, key))
//!         .await?;
//!     Ok(vec![Effect::json("receipts", &receipt)?])
//! })
//! # }
//! ```
//!
//! The journal of a message is kept as long as its claim.

mod calls;
mod entries;
mod error;
mod unknown;

pub use calls::Calls;
pub use error::{CallError, CallFailed};
pub use unknown::{OnUnknown, UnknownCall};
