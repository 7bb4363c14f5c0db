//! The clients of the external services.

use std::net::SocketAddr;

use anyhow::Result;
use lettre::{AsyncSmtpTransport, AsyncTransport, Message as Mail, Tokio1Executor};
use reqwest::{Client, StatusCode};

use crate::outside::Order;

/// The client of an external service.
#[derive(Clone)]
pub struct Outside {
    address: SocketAddr,
    http: Client,
}

impl Outside {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            http: Client::new(),
        }
    }

    /// Charges a card at the gateway.
    pub async fn charge(&self, order: &Order, key: &str) -> Result<Order> {
        self.post("charges", order, key).await
    }

    /// Books a parcel at the carrier, which ignores idempotency keys.
    pub async fn book(&self, order: &Order) -> Result<Order> {
        self.post("bookings", order, "").await
    }

    async fn post(&self, path: &str, order: &Order, key: &str) -> Result<Order> {
        let request = self
            .http
            .post(format!("http://{}/{path}", self.address))
            .header("Idempotency-Key", key)
            .json(order);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }

    /// Returns the booking at the carrier with this reference, or `None`.
    pub async fn find(&self, reference: &str) -> Result<Option<Order>> {
        let url = format!("http://{}/bookings/{reference}", self.address);
        let response = self.http.get(url).send().await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(response.error_for_status()?.json().await?))
    }

    /// Sends a mail with this subject.
    pub async fn send(&self, subject: &str) -> Result<()> {
        let mail = Mail::builder()
            .from("shop@example.org".parse()?)
            .to("customer@example.org".parse()?)
            .subject(subject)
            .body("Your parcel is on its way.\n".to_owned())?;
        let transport =
            AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(self.address.ip().to_string())
                .port(self.address.port())
                .build();
        transport.send(mail).await?;
        Ok(())
    }
}
