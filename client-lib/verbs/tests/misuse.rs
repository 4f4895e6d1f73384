//! What the ownership order of this crate is for: misuse that does not compile. `TRYBUILD=overwrite` writes anew what the compiler says.

#[test]
fn what_must_not_compile_does_not() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
