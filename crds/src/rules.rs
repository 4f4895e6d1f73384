//! CEL rules about the networks of a service, with messages that name the wrong values.

/// Expands to the alias of the network in a CEL variable.
macro_rules! alias {
    ($network:literal) => {
        concat!("(has(", $network, ".alias) ? ", $network, ".alias : ", $network, ".name)")
    };
}

/// Expands to the condition that the CEL variables `n` and `m` are one network under two aliases. A
/// rule cannot see the service's namespace, so that a network without a namespace counts as
/// different from one that names the service's.
macro_rules! other {
    () => {
        concat!(
            "n.name == m.name && n.kind == m.kind && ",
            "(has(n.__namespace__) ? n.__namespace__ : '') == (has(m.__namespace__) ? m.__namespace__ : '') && ",
            alias!("n"),
            " != ",
            alias!("m")
        )
    };
}

/// Rule of `spec.networks`: aliases are unique.
pub(crate) const ALIASES_ARE_UNIQUE: &str =
    concat!("self.all(n, self.exists_one(m, ", alias!("m"), " == ", alias!("n"), "))");

/// Message for [`ALIASES_ARE_UNIQUE`], with the first alias that occurs more than once.
pub(crate) const ALIAS_OCCURS_TWICE: &str = concat!(
    "'the aliases of the networks must be unique, and a network without alias has its name for one; \"%s\" occurs \
     several times'.format(self.map(n, ",
    alias!("n"),
    ").filter(a, !self.exists_one(n, ",
    alias!("n"),
    " == a)))"
);

/// Rule of `spec.networks`: no network is listed under two aliases.
pub(crate) const NETWORKS_ARE_UNIQUE: &str = concat!("!self.exists(n, self.exists(m, ", other!(), "))");

/// Message for [`NETWORKS_ARE_UNIQUE`], with the first network that has several aliases, and two of
/// them. It uses `format`, because the API server cannot estimate the cost of `+` in a list.
pub(crate) const NETWORK_OCCURS_TWICE: &str = concat!(
    "'each network may be listed once; %s %s is listed as %s and %s: keep one of them'.format(self.filter(n, self.exists(m, ",
    other!(),
    ")).map(n, [n.kind, n.name, ",
    alias!("n"),
    ", self.filter(m, ",
    other!(),
    ").map(m, ",
    alias!("m"),
    ")[0]])[0])"
);

/// Rule of `spec`: the mirrored network is one of the networks.
pub(crate) const MIRROR_HAS_A_NETWORK: &str = concat!(
    "!has(self.mirror) || !has(self.mirror.network) || self.networks.exists(n, ",
    alias!("n"),
    " == self.mirror.network)"
);

/// Message for [`MIRROR_HAS_A_NETWORK`], with the unknown alias.
pub(crate) const MIRROR_HAS_NO_NETWORK: &str =
    "'must be the alias of one of the networks; \"' + self.mirror.network + '\" is not'";
