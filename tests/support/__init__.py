"""What the tests share: fakes, harnesses and builders."""
