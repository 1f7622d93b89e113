def pytest_addoption(parser):
    parser.addoption("--simulate-seconds", type=int, default=20, help="for how long seeds are begun, on all cores")
    parser.addoption("--simulate-start", type=int, default=1, help="the first seed")
