//! Rules of networks and ports, which both kinds have.

use super::check::Check;
use crate::schema::PORTS;
use crate::syntax::{DNS_LABEL, DNS_SUBDOMAIN, PORT_NAME, QUALIFIED_NAME};
use crate::{NetworkReference, Port};

/// Maximum number of ports of a service or slice.
const MAX_PORTS: usize = 100;

pub(super) fn network(check: &mut Check, network: &NetworkReference) {
    check.text("name", &network.name, &DNS_SUBDOMAIN);
    check.optional("namespace", network.namespace.as_ref(), &DNS_LABEL);
    if network.namespace.is_some() && !network.kind.is_namespaced() {
        check.field("namespace", |check| {
            check.fail(format!("must not be set: a {} is cluster-scoped", network.kind.as_str()));
        });
    }
    check.optional("alias", network.alias.as_ref(), &DNS_LABEL);
    if network.alias.is_none() && DNS_SUBDOMAIN.accepts(&network.name) && !DNS_LABEL.accepts(&network.name) {
        check.field("alias", |check| {
            check.fail(format!(
                "is required, because name ({:?}) is not a DNS label and cannot stand for it; set alias to {DNS_LABEL}",
                network.name
            ));
        });
    }
}

pub(super) fn ports(check: &mut Check, ports: &[Port]) {
    check.length("ports", ports.len(), 0..=MAX_PORTS);
    check.items("ports", ports, |check, port| {
        check.text("name", &port.name, &PORT_NAME);
        check.number("port", port.port, PORTS);
        check.optional("appProtocol", port.app_protocol.as_ref(), &QUALIFIED_NAME);
    });
    check.unique("ports", "name", ports.iter().map(|port| &port.name));
}
