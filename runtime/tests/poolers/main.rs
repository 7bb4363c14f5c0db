//! Tests of poolers that give each transaction another process of the server.

mod links;
